#!/usr/bin/env bash
# For spark.*.resource.gpu.discoveryScript: this machine's GPUs as Spark wants them.
set -euo pipefail
nvidia-smi --query-gpu=index --format=csv,noheader |
    awk '{ list = list (NR > 1 ? "," : "") "\"" $1 "\"" } END { print "{\"name\": \"gpu\", \"addresses\": [" list "]}" }'
