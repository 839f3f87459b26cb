# shellcheck shell=bash
# Shared by the scripts beside it; defines functions and prints nothing. In a shell of your own:
#   source scripts/env.sh && kv_activate "$(kv_default_env)"
# puts the environment that scripts/setup made, with its ROS 2 and our interfaces, into this shell.
#
# DIR/venv     Python packages, and the ROS 2 wheels where no ROS 2 was sourced
# DIR/work/*   the colcon build of one checkout (build, install, log)
# DIR/stamps   one file per finished step of scripts/setup
# DIR/mode     what was found when DIR was made: the ROS 2 in use

kv_root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

# Prints the comment below the first line of a script: its help.
kv_help() { sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$1"; }

# Whether a ROS 2 with rclpy is sourced in this shell.
kv_has_ros() {
  local prefix IFS=:
  [ -n "${ROS_DISTRO:-}" ] || return 1
  for prefix in ${AMENT_PREFIX_PATH:-}; do
    [ ! -e "$prefix/share/rclpy/package.xml" ] || return 0
  done
  return 1
}

# Prints "ros-DISTRO" or "wheels".
kv_mode() { if kv_has_ros; then printf 'ros-%s' "$ROS_DISTRO"; else printf wheels; fi; }

# Why the interpreter $1 cannot be used; nothing where it can. With a sourced ROS 2 it must be able to import rclpy.
kv_python_problem() {
  "$1" - "$(kv_mode)" <<'PY' 2>/dev/null || echo "does not start"
import importlib.util
import os
import sys
import sysconfig

missing = [m for m in ('venv', 'ensurepip') if importlib.util.find_spec(m) is None]
headers = os.path.join(sysconfig.get_paths()['include'], 'Python.h')
if sys.version_info[:2] not in ((3, 11), (3, 12)):
    print('is Python {}.{}, not 3.11 or 3.12'.format(*sys.version_info))
elif missing:
    print('has no module {} (Debian, Ubuntu: apt install python3-venv)'.format(missing[0]))
elif not os.path.exists(headers):
    print('has no C headers (Debian, Ubuntu: apt install python3-dev)')
elif sys.argv[1] != 'wheels' and importlib.util.find_spec('rclpy') is None:
    print('cannot import the rclpy of the sourced ROS 2')
PY
}

# Prints the interpreter for the environment, or explains on stderr what each candidate lacks.
kv_find_python() {
  local candidate path problem reasons=''
  local names=(python3.11 python3.12 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[12].*/bin/python3)
  kv_has_ros && names=(python3)
  for candidate in "${names[@]}"; do
    path=$(command -v "$candidate") || continue
    problem=$(kv_python_problem "$path")
    [ -n "$problem" ] || { printf '%s' "$path"; return 0; }
    reasons+="  $path $problem"$'\n'
  done
  printf 'Python 3.11 or 3.12 is needed (with venv and the C headers) and was not found.\n%s' "$reasons" >&2
  return 1
}

# Prints the environment folder used where no --env is given: one per lock files, Python version and ROS 2.
kv_default_env() {
  local python version key
  python=$(kv_find_python) || return 1
  version=$("$python" -c 'import sys; print("py{}.{}".format(*sys.version_info))') || return 1
  key=$(cat "$kv_root"/requirements/{ros,runtime,models,dev}.txt | sha256sum | cut -c1-12) || return 1
  printf '%s/kv_agent_ros/%s-%s-%s' "${XDG_CACHE_HOME:-$HOME/.cache}" "$key" "$version" "$(kv_mode)"
}

# Takes "--env DIR" out of the arguments: sets kv_env and kv_arguments (the others, in order). "--" stays and ends it.
kv_parse() {
  kv_env='' kv_arguments=()
  while [ $# -gt 0 ]; do
    case $1 in
      --env) [ $# -ge 2 ] || { echo '--env needs a folder' >&2; return 2; }; kv_env=$2; shift 2 ;;
      --env=*) kv_env=${1#--env=}; shift ;;
      --) kv_arguments+=("$@"); break ;;
      *) kv_arguments+=("$1"); shift ;;
    esac
  done
  [ -n "$kv_env" ] || kv_env=$(kv_default_env) || return 1
  kv_env=$(realpath -m -- "$kv_env")
}

# The folder of this checkout's colcon build in environment $1.
kv_work() { printf '%s/work/%s' "$1" "$(printf '%s' "$kv_root" | sha256sum | cut -c1-12)"; }

# Whether option -h or --help stands before any "--".
kv_wants_help() {
  local argument
  for argument in "$@"; do
    case $argument in -h | --help) return 0 ;; --) return 1 ;; esac
  done
  return 1
}

# Sets the variables of environment $1 without our own interfaces: enough for pip and colcon.
kv_activate_base() {
  local mode
  mode=$(cat "$1/mode" 2>/dev/null) || { echo "no environment in $1: run scripts/setup" >&2; return 1; }
  export VIRTUAL_ENV=$1/venv PATH=$1/venv/bin:$PATH
  if [ "$mode" = wheels ]; then
    export AMENT_PREFIX_PATH=$VIRTUAL_ENV CMAKE_PREFIX_PATH=$VIRTUAL_ENV
    unset RMW_IMPLEMENTATION PYTHONPATH _ROS_WHEELS_BOOTSTRAP_COMPLETE LD_LIBRARY_PATH
  elif ! kv_has_ros; then
    echo "$1 was made for $mode: source that ROS 2 first, or name another folder with --env" >&2
    return 1
  fi
  # colcon's own default, -jN -lN, stalls on a busy machine.
  MAKEFLAGS=-j$(nproc)
  export MAKEFLAGS
  export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
}

# Sets everything: ROS 2, our interfaces, the checkout in front of its installed copy, discovery on this machine only.
kv_activate() {
  local work had_nounset=''
  kv_activate_base "$1" || return 1
  work=$(kv_work "$1")
  [ -f "$work/install/local_setup.bash" ] || { echo "no build of $kv_root in $1: run scripts/setup" >&2; return 1; }
  case $- in *u*) had_nounset=1; set +u ;; esac
  # shellcheck disable=SC1091
  source "$work/install/local_setup.bash"
  [ -z "$had_nounset" ] || set -u
  export PYTHONPATH=$kv_root${PYTHONPATH:+:$PYTHONPATH}
  export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
  export ROS_DOMAIN_ID=${ROS_DOMAIN_ID:-$((RANDOM % 100 + 1))}
  export ROS_LOG_DIR=${ROS_LOG_DIR:-$work/log/ros}
}

# Runs "$@" in a process group of its own and waits; a signal to this shell ends the whole group. Returns its exit code,
# 130 or 143 after a signal.
kv_run_group() {
  local code=0 signalled=''
  set -m
  "$@" &
  local pid=$!
  set +m
  trap 'signalled=130; kill -TERM -- "-$pid" 2>/dev/null' INT
  trap 'signalled=143; kill -TERM -- "-$pid" 2>/dev/null' TERM HUP
  while true; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  trap - INT TERM HUP
  return "${signalled:-$code}"
}

# Runs step $1 with title $2 and command $3… unless it has already succeeded for the key on stdin; shows how long it
# took, and on failure the end of its log, and exits. The stamp is written last, so that an interrupted step runs again.
# The caller has set kv_env, kv_stamps, steps (how many), number (0) and done_steps (0). bash ignores "set -e" inside
# a step: it says itself when to stop.
kv_step() {
  local name=$1 title=$2 key log="$kv_env/log/$1.log" begun=$SECONDS code=0 ticker=''
  shift 2
  key=$(sha256sum | cut -c1-32)
  number=$((number + 1))
  [ "$(cat "$kv_stamps/$name" 2>/dev/null)" != "$key" ] || return 0
  rm -f "$kv_stamps/$name"
  printf '[%d/%d] %s … ' "$number" "$steps" "$title"
  if [ -t 1 ]; then
    (while sleep 1; do printf '\r[%d/%d] %s … %d s ' "$number" "$steps" "$title" $((SECONDS - begun)); done) &
    ticker=$!
  fi
  kv_run_group "$@" >"$log" 2>&1 || code=$?
  [ -z "$ticker" ] || { kill "$ticker" 2>/dev/null; wait "$ticker" 2>/dev/null || true; printf '\r[%d/%d] %s … ' "$number" "$steps" "$title"; }
  if [ "$code" -ne 0 ]; then
    echo "stopped after $((SECONDS - begun)) s (exit code $code)"
    [ "$code" -ge 130 ] || { tail -n 30 "$log" | sed 's/^/  | /'; echo "The whole log: $log"; } >&2
    exit "$code"
  fi
  printf '%s' "$key" >"$kv_stamps/$name"
  done_steps=$((done_steps + 1))
  echo "$((SECONDS - begun)) s"
}
