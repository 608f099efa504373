#!/bin/sh
# Installed by cosyd: the command as the service's own user, so that no file of the service comes to belong to root.
export COSYD_STATE_DIR=/var/lib/cosyd
program=/opt/cosyd/venv/bin/cosyd
[ "$(id -u)" = 0 ] || exec "$program" "$@"
case ${1:-} in
update | backup | restore) exec "$program" "$@" ;; # these change what belongs to root, or write where root says
esac
export HOME=/var/lib/cosyd XDG_CACHE_HOME=/var/cache/cosyd
exec setpriv --reuid cosyd --regid cosyd --init-groups -- "$program" "$@"
