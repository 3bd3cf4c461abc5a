#!/bin/sh
# Create the secrets of compose.yaml: passwords of the stores, and the addresses that contain them. Existing files stay.
# Other users cannot open the folder; the files in it are readable, because each image reads them under another user.
set -eu
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
chmod 700 "$folder"
cd "$folder"

make() { # NAME, content from standard input
  [ -s "$1" ] || cat >"$1"
  chmod 444 "$1"
}
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

for name in postgres_password redis_password clickhouse_password grafana_password github_webhook_secret; do
  random | make "$name"
done
printf 'postgresql://crcr:%s@postgres:5432/crcr' "$(cat postgres_password)" | make database_url
printf 'redis://:%s@redis:6379/0' "$(cat redis_password)" | make redis_url
printf 'clickhouse://crcr:%s@clickhouse:8123/crcr' "$(cat clickhouse_password)" | make clickhouse_url
printf 'CLICKHOUSE_USER=crcr\nCLICKHOUSE_DB=crcr\nCLICKHOUSE_PASSWORD=%s\n' "$(cat clickhouse_password)" | make clickhouse.env
make redis_conf <<END
requirepass $(cat redis_password)
save ""
appendonly no
maxmemory 128mb
maxmemory-policy noeviction
END

[ -s github_app_private_key ] || echo "put the App's private key into $PWD/github_app_private_key (chmod 444)"
echo "the App's webhook secret is in $PWD/github_webhook_secret"
