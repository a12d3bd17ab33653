#!/usr/bin/env bash
# Replaces `lab run` in the harness's tests: runs the script on this machine with the given
# variables.
set -eu
while [ "$1" != -- ]; do
  case $1 in
    --env) export "${2?}"; shift 2 ;;
    *) shift ;;
  esac
done
shift
exec "$@"
