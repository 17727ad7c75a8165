#!/usr/bin/env bash
# Build an image of Spark from packages: Debian with a JRE, PySpark from PyPI, and this clone's Tuplewire.
set -euo pipefail
# shellcheck source=env.sh
source "$(dirname "$0")/env.sh"
project=$(realpath "$here/../..")
work=$K8S_DIR/src/spark
mkdir -p "$work" "$K8S_DIR/images"
cd "$work"
if [[ ! -s base.tar ]]; then
    # shellcheck disable=SC2016
    mmdebstrap --quiet --variant=essential --include=openjdk-17-jre-headless,python3-venv,libstdc++6,tini,procps \
        '--dpkgopt=path-exclude=/usr/share/doc/*' '--essential-hook=mkdir -p "$1/usr/share/man/man1"' --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        '--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
        '--customize-hook=echo "spark:x:185:185::/nonexistent:/usr/sbin/nologin" >>"$1/etc/passwd"; echo "spark:x:185:" >>"$1/etc/group"' \
        bookworm base.part.tar
    mv base.part.tar base.tar
fi
# The environment has to be made at the path that it has in the image.
if [[ ! -x /opt/sparkenv/bin/python ]]; then
    /usr/bin/python3 -m venv --without-pip /opt/sparkenv 2>/dev/null || python3 -m venv --without-pip /opt/sparkenv
    python3 -m pip --python /opt/sparkenv/bin/python install --quiet --disable-pip-version-check "tuplewire[service,spark,team] @ file://$project" pyspark==4.3.0
fi
# The cache may have an older commit.
python3 -m pip --python /opt/sparkenv/bin/python install --quiet --disable-pip-version-check --force-reinstall --no-deps "tuplewire @ file://$project"
rm -rf root && mkdir -p root/opt/spark-work
ln -s "/opt/sparkenv/lib/python3.11/site-packages/pyspark" root/opt/spark
cp "$here/entrypoint.sh" "$here/spark_job.py" "$here/code_digest.py" root/opt/
chmod 755 root/opt/entrypoint.sh
chown -R 185:185 root/opt/spark-work
tar -C / -cf app.tar opt/sparkenv
tar -C root -rf app.tar opt
python3 - <<'END'
import hashlib, json, os, tarfile
layers = ["base.tar", "app.tar"]
ids = []
for each in layers:
    digest = hashlib.sha256()
    with open(each, "rb") as file:
        while part := file.read(1 << 22):
            digest.update(part)
    ids.append("sha256:" + digest.hexdigest())
home = "/opt/sparkenv/lib/python3.11/site-packages/pyspark"
config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}, "config": {
    "User": "185", "WorkingDir": "/opt/spark-work", "Entrypoint": ["/opt/entrypoint.sh"], "Env": [
        "PATH=/opt/sparkenv/bin:/usr/local/bin:/usr/bin:/bin", f"SPARK_HOME={home}", "PYSPARK_PYTHON=/opt/sparkenv/bin/python",
        "PYSPARK_DRIVER_PYTHON=/opt/sparkenv/bin/python", "JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64"]}}
open("config.json", "w").write(json.dumps(config))
open("manifest.json", "w").write(json.dumps([{"Config": "config.json", "RepoTags": ["localhost/spark:dev"], "Layers": layers}]))
END
tar -cf "$K8S_DIR/images/spark.tar" manifest.json config.json base.tar app.tar
ls -la "$K8S_DIR/images/spark.tar" >&2
