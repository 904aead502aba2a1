// Package strict tells what became of writes that were sent with strict field
// validation, where a CRD would else drop a field in silence.
package strict

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// SchemaTooOld tells whether a patch was refused because the CRD lacks a field
// that it sets. The API server then blames the patch as a whole.
func SchemaTooOld(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "patch" {
			return true
		}
	}
	return false
}
