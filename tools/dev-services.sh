#!/usr/bin/env bash
# Install (Debian, root) and start what the container tests need: a Docker engine. Idempotent.
#   tools/dev-services.sh start     start dockerd unless an engine answers already; waits for its socket
#   tools/dev-services.sh stop      end the dockerd that this script started
# The tests start their own registry on a free loopback port (docker-registry).
set -euo pipefail

state=${BISECT_SERVICES_DIR:-/var/run/bisect-dev-services}
packages=(docker.io docker-registry iptables)

need_packages() {
  ! command -v dockerd >/dev/null || ! command -v docker-registry >/dev/null || ! command -v iptables >/dev/null
}

install_packages() {
  need_packages || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "dev-services: install ${packages[*]} first (this script does it as root on Debian)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

answers() { timeout 10 docker info >/dev/null 2>&1; }

start() {
  install_packages
  if answers; then
    echo "dev-services: a Docker engine answers"
    return
  fi
  mkdir -p "$state"
  rm -f /var/run/docker.pid
  setsid nohup dockerd >"$state/dockerd.log" 2>&1 </dev/null &
  echo $! >"$state/dockerd.pid"
  for _ in $(seq 120); do
    if answers; then
      echo "dev-services: dockerd started"
      return
    fi
    if ! kill -0 "$(cat "$state/dockerd.pid")" 2>/dev/null; then break; fi
    sleep 0.5
  done
  echo "dev-services: dockerd did not come up; the end of its log:" >&2
  tail -n 20 "$state/dockerd.log" >&2
  exit 1
}

stop() {
  [ -e "$state/dockerd.pid" ] || return 0
  pid=$(cat "$state/dockerd.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 60); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.5
  done
  rm -f "$state/dockerd.pid"
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  *) echo "usage: $0 start|stop" >&2; exit 2 ;;
esac
