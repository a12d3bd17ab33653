#!/usr/bin/env bash
# Stands in for `lab run` in the harness's tests: runs the script here, with the variables it is given.
set -eu
while [ "$1" != -- ]; do
  case $1 in
    --env) export "${2?}"; shift 2 ;;
    *) shift ;;
  esac
done
shift
exec "$@"
