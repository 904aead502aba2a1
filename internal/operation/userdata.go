package operation

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"
)

// maxUserDataBytes is the smallest limit of the providers that we know of.
const maxUserDataBytes = 16 << 10

// AgentConfigPath is the path of the agent's installation config on a replaced host.
const AgentConfigPath = "/etc/hostformat/agent.json"

//go:embed userdata.yaml
var defaultUserData []byte

// UserData renders the cloud-init payload of a Machine.
type UserData struct{ template map[string]any }

// NewUserData reads a template: a cloud-config in YAML, to which each rendering
// adds a file with the agent's installation config. Empty is the built-in one.
func NewUserData(template []byte) (*UserData, error) {
	if len(template) == 0 {
		template = defaultUserData
	}
	u := &UserData{}
	if err := yaml.UnmarshalStrict(template, &u.template); err != nil {
		return nil, fmt.Errorf("the user data template is not a cloud-config in YAML: %w", err)
	}
	if u.template == nil {
		u.template = map[string]any{}
	}
	if files, ok := u.template["write_files"]; ok {
		if _, ok := files.([]any); !ok {
			return nil, fmt.Errorf("the user data template's write_files must be a list, got %T", files)
		}
	}
	if _, err := u.Render("a-machine"); err != nil {
		return nil, err
	}
	return u, nil
}

// Render returns the payload for a Machine. The agent's config has no
// ProvisioningFormat: the report of the agent says what is installed. The error says
// that the payload is too large.
func (u *UserData) Render(machine string) ([]byte, error) {
	config, err := json.Marshal(map[string]string{"MachineName": machine})
	if err != nil {
		return nil, err
	}
	content := maps.Clone(u.template)
	files, _ := u.template["write_files"].([]any)
	content["write_files"] = append(slices.Clip(files), map[string]any{
		"path": AgentConfigPath, "permissions": "0600", "content": string(config) + "\n",
	})
	text, err := yaml.Marshal(content)
	if err != nil {
		return nil, err
	}
	text = append([]byte("#cloud-config\n"), text...)
	if len(text) > maxUserDataBytes {
		return nil, fmt.Errorf("the user data of Machine %s has %d bytes, and a host gets at most %d; shorten the template", machine, len(text), maxUserDataBytes)
	}
	return text, nil
}
