// Package strict interprets the answers to writes with strict field validation,
// without which the API server would silently drop fields that a CRD lacks.
package strict

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// SchemaTooOld reports whether a patch was refused because the CRD lacks a field
// that it sets. The API server then names the patch as the field of the cause.
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
