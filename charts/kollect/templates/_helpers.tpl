{{- define "kollect.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of objects begin with this. Short enough for the longest suffix. */}}
{{- define "kollect.fullname" -}}
{{- $name := include "kollect.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 42 | trimSuffix "-" -}}
{{- end -}}

{{- define "kollect.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kollect.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kollect.labels" -}}
{{ include "kollect.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kollect.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kollect.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kollect.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default (printf "v%s" .Chart.AppVersion) .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Namespaces that the operator watches, as a JSON list under "names"; empty: all. */}}
{{- define "kollect.watchNamespaces" -}}
{{- $names := .Values.watchNamespaces -}}
{{- if and .Values.tenantMode (not $names) -}}
{{- $names = list .Release.Namespace -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{/* Not empty if /metrics is wanted; the address 0 means that it is not. */}}
{{- define "kollect.metricsWanted" -}}
{{- if and .Values.metrics.enabled (ne .Values.metrics.bindAddress "0") -}}true{{- end -}}
{{- end -}}
{{/* Not empty if /metrics is served. To check the rights of clients, more than a Role is needed. */}}
{{- define "kollect.metricsServed" -}}
{{- if and (include "kollect.metricsWanted" .) (not (and .Values.tenantMode .Values.metrics.secure)) -}}true{{- end -}}
{{- end -}}
{{- define "kollect.metricsPort" -}}
{{- regexFind "[0-9]+$" .Values.metrics.bindAddress -}}
{{- end -}}

{{/* Not empty if the kinds are part of the release. They belong to the whole cluster. */}}
{{- define "kollect.kindsCreated" -}}
{{- if and .Values.crds.create (not .Values.tenantMode) -}}true{{- end -}}
{{- end -}}

{{/* Not empty if webhooks are served. They belong to the whole cluster. */}}
{{- define "kollect.webhooksServed" -}}
{{- if and .Values.webhooks.enabled (not .Values.tenantMode) -}}true{{- end -}}
{{- end -}}
{{/* The Secret with a certificate that is not the operator's; empty if the operator makes it. */}}
{{- define "kollect.foreignCertificate" -}}
{{- if .Values.webhooks.certManager.create -}}
{{- .Values.webhooks.certManager.secretName -}}
{{- else -}}
{{- .Values.webhooks.existingSecret -}}
{{- end -}}
{{- end -}}
{{- define "kollect.certificateSecret" -}}{{ include "kollect.fullname" . }}-webhook-certificate{{- end -}}
{{- define "kollect.webhookService" -}}{{ include "kollect.fullname" . }}-webhook-service{{- end -}}
{{- define "kollect.webhookConfiguration" -}}{{ include "kollect.fullname" . }}-validating-webhook-configuration{{- end -}}

{{/* Flags of the operator, as a YAML list. */}}
{{- define "kollect.args" -}}
{{- $values := .Values -}}
- operator
- --log-level={{ $values.logLevel }}
- --log-format={{ $values.logFormat }}
- --health-probe-bind-address=:8081
{{- if include "kollect.metricsServed" . }}
- --metrics-bind-address={{ $values.metrics.bindAddress }}
- --metrics-secure={{ $values.metrics.secure }}
{{- with $values.controller.collectMetricsSampleInterval }}
- --collect-metrics-sample-interval={{ . }}
{{- end }}
{{- end }}
{{- if $values.leaderElection.enabled }}
- --leader-elect
{{- with $values.leaderElection.leaseDuration }}
- --leader-elect-lease-duration={{ . }}
{{- end }}
{{- with $values.leaderElection.renewDeadline }}
- --leader-elect-renew-deadline={{ . }}
{{- end }}
{{- with $values.leaderElection.retryPeriod }}
- --leader-elect-retry-period={{ . }}
{{- end }}
{{- end }}
{{- if $values.tenantMode }}
- --tenant-mode
{{- end }}
{{- if include "kollect.webhooksServed" . }}
- --webhook-bind-address=:9443
{{- else }}
- --validating-webhooks-enabled=false
{{- end }}
{{- if and (include "kollect.webhooksServed" .) (not (include "kollect.foreignCertificate" .)) }}
- --webhook-cert-secret={{ include "kollect.certificateSecret" . }}
- --webhook-service={{ include "kollect.webhookService" . }}
- --webhook-configuration={{ include "kollect.webhookConfiguration" . }}
{{- end }}
{{- with $values.controller.informerResyncPeriod }}
- --informer-resync-period={{ . }}
{{- end }}
{{- if and $values.tenantMode (not $values.watchNamespaces) }}
- --watch-namespaces=$(POD_NAMESPACE)
{{- end }}
{{- range $flag, $list := dict
    "watch-namespaces" $values.watchNamespaces
    "default-included-namespaces" $values.defaultIncludedNamespaces
    "default-excluded-namespaces" $values.defaultExcludedNamespaces
    "allow-secret-extraction" $values.allowSecretExtraction
    "allow-secret-namespaces" $values.allowSecretNamespaces
    "scrub-keys" $values.scrubKeys
    "scrub-allow-keys" $values.scrubAllowKeys
    "allow-sink-cidrs" $values.allowSinkCidrs
    "deny-sink-cidrs" $values.denySinkCidrs }}
{{- with $list }}
- --{{ $flag }}={{ join "," . }}
{{- end }}
{{- end }}
{{- if ne $values.crossNamespaceTargets "scoped" }}
- --cross-namespace-targets={{ $values.crossNamespaceTargets }}
{{- end }}
{{- if not $values.scrubTexts }}
- --scrub-texts=false
{{- end }}
{{- if $values.allowPrivateSinks }}
- --allow-private-sinks
{{- end }}
{{- with $values.fileSinkRoot }}
- --file-sink-root={{ . }}
{{- end }}
{{- with $values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Values that the Go implementation had and that have no effect here, with what to do instead, as a JSON object. Only those that
     are set. They are not in values.yaml, so whatever is set was set by the user. */}}
{{- define "kollect.retiredValues" -}}
{{- $retired := dict
    "createNamespace" "use helm install --create-namespace"
    "mode" "there is one mode"
    "sinkDefaults" "every sink is probed, unless spec.connectionTest is false"
    "featureGates" "the read API is not part of this version: read the sinks; profiling: perf reads the program as it is"
    "oauth2Proxy" "there is no read API in front of which it would stand"
    "pprof" "perf reads the program as it is"
    "controller.maxConcurrentReconciles" "everything is concurrent already"
    "controller.collectDispatchWorkers" "each kind has a task of its own"
    "controller.collectDispatchQueueSize" "a watch waits for its reader, and nothing is queued"
    "controller.reconcileRateLimit" "sinks have their own pauses"
    "controller.targetCountResync" "counts are live" -}}
{{- $set := dict -}}
{{- range $path, $instead := $retired -}}
{{- $value := $.Values -}}
{{- range $key := splitList "." $path -}}
{{- $value = get $value $key -}}
{{- end -}}
{{- if or (kindIs "bool" $value) (not (empty $value)) -}}
{{- $_ := set $set $path $instead -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := omit .Values.largeCluster "resources" "scratchSize" -}}
{{- $_ := set $set (printf "largeCluster.%s" $key) "only largeCluster.resources and largeCluster.scratchSize have an effect" -}}
{{- end -}}
{{- toJson $set -}}
{{- end -}}

{{/* Top-level keys that this chart does not know, as a JSON list under "keys". */}}
{{- define "kollect.unknownValues" -}}
{{- $known := list "affinity" "allowPrivateSinks" "allowSecretExtraction" "allowSecretNamespaces" "allowSinkCidrs" "collect"
    "collectHelmReleases" "controller" "crds" "createNamespace" "crossNamespaceTargets" "defaultExcludedNamespaces"
    "defaultIncludedNamespaces" "denySinkCidrs" "extraArgs" "extraEnv" "extraVolumeMounts" "extraVolumes" "featureGates"
    "fileSinkRoot" "fullnameOverride" "global" "image" "imagePullSecrets" "largeCluster" "leaderElection" "logFormat" "logLevel"
    "metrics" "mode" "nameOverride" "networkPolicy" "nodeSelector" "oauth2Proxy" "podAnnotations" "podDisruptionBudget" "podLabels"
    "podSecurityContext" "pprof" "priorityClassName" "rbac" "replicaCount" "resources" "resourcesProfile" "scratchSize" "scrubAllowKeys" "scrubKeys" "scrubTexts"
    "securityContext" "serviceAccount" "sinkDefaults" "strategy" "tenantMode" "terminationGracePeriodSeconds" "tolerations"
    "topologySpreadConstraints" "watchNamespaces" "webhooks" -}}
{{- $unknown := list -}}
{{- range $key, $_ := .Values -}}
{{- if not (has $key $known) -}}{{- $unknown = append $unknown $key -}}{{- end -}}
{{- end -}}
{{- dict "keys" $unknown | toJson -}}
{{- end -}}

{{/* Combinations of values that cannot work. */}}
{{- define "kollect.check" -}}
{{- if hasSuffix "platformrelay/kollect" .Values.image.repository -}}
{{- fail (printf "image.repository %s has the Go implementation, which does not know the arguments of this chart: remove image from the values, or name an image of this version" .Values.image.repository) -}}
{{- end -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.leaderElection.enabled) -}}
{{- fail (printf "replicaCount %d needs leaderElection.enabled: only one replica may write" (int .Values.replicaCount)) -}}
{{- end -}}
{{- if and .Values.webhooks.certManager.create .Values.webhooks.existingSecret -}}
{{- fail "webhooks.certManager.create and webhooks.existingSecret exclude each other: set one of them" -}}
{{- end -}}
{{- if and .Values.webhooks.existingSecret (not .Values.webhooks.caBundle) -}}
{{- fail "webhooks.existingSecret needs webhooks.caBundle: the certificate of its authority as PEM" -}}
{{- end -}}
{{- if and .Values.webhooks.caBundle (not .Values.webhooks.existingSecret) -}}
{{- fail "webhooks.caBundle needs webhooks.existingSecret: otherwise the operator or cert-manager sets it" -}}
{{- end -}}
{{- end -}}
