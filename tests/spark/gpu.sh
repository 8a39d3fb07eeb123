#!/bin/sh
# A worker with one GPU, number 3, for ClusterTest.
echo '{"name": "gpu", "addresses": ["3"]}'
