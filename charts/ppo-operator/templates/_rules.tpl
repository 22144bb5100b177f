{{/* What the operator does to the objects of jobs, in each namespace it watches. */}}
{{- define "ppo-operator.jobRules" -}}
- apiGroups: [ppojob.dev]
  resources: [ppojobs]
  # get: once more before anything is deleted; delete: ttlSecondsAfterFinished
  verbs: [get, list, watch, delete]
- apiGroups: [ppojob.dev]
  resources: [ppojobs/status]
  verbs: [patch]
- apiGroups: [ppojob.dev]
  # Asked for by the admission plugin OwnerReferencesPermissionEnforcement.
  resources: [ppojobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  # A job's configuration never changes.
  resources: [configmaps]
  verbs: [list, watch, create]
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch, create, patch]
- apiGroups: [""]
  # The operator writes a job's token and reads no secret's content; its list and watch ask for metadata only.
  resources: [secrets]
  verbs: [list, watch, create]
- apiGroups: [""]
  # Never deleted by the operator: they hold checkpoints.
  resources: [persistentvolumeclaims]
  verbs: [list, watch, create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  # delete: where jobNetworkPolicies was turned off
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  # delete: of a job that does not run, whose pods nobody needs to keep, and where jobDisruptionBudgets was turned off
  verbs: [list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io, scheduling.k8s.io]
  resources: [podgroups]
  # delete: of a suspended job, whose next pods may be another gang's
  verbs: [list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}

{{/* What it reads that lies in no namespace. */}}
{{- define "ppo-operator.clusterRules" -}}
- apiGroups: [""]
  # A pod hangs while it terminates: is its node lost?
  resources: [nodes]
  verbs: [get]
- apiGroups: [apiextensions.k8s.io]
  # Is the definition the one that this version was built for? Followed, by name: it may be upgraded meanwhile.
  resources: [customresourcedefinitions]
  resourceNames: [ppojobs.ppojob.dev]
  verbs: [list, watch]
- apiGroups: [kueue.x-k8s.io]
  # Labels of the nodes that a queue gave; the value of a job's priority class.
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  # The same of Kubernetes' classes; the default one is found in the list.
  resources: [priorityclasses]
  verbs: [get, list]
{{- end }}
