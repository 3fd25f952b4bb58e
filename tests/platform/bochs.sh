#!/usr/bin/env bash
# The golden digests with the AVX-512 kernels, in the emulator Bochs: no CPU here need have them.
#
#     tests/platform/bochs.sh [CPU]     corei7_skylake_x (default) or tigerlake
#
# Boots a Linux kernel whose only program is the static C driver of golden.py. Two minutes, and the build.
# On Debian it needs: bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso cpio, and
# a Python with NumPy, ml_dtypes, ziglang and this package (PYTHON, by default python3).
set -euo pipefail

cpu=${1:-corei7_skylake_x}
python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
seconds=1800
bochs_pid=
trap 'stop; rm -rf "$scratch"' EXIT

stop() {
    if [ -n "$bochs_pid" ]; then
        kill "$bochs_pid" 2>/dev/null || true
    fi
}

# Debian's kernel for virtual machines, unpacked and not installed.
get_kernel() {
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $2}')
    (cd "$scratch" && apt-get download -q "$package")
    dpkg-deb -x "$scratch/$package"_*.deb "$scratch/kernel"
    mv "$scratch"/kernel/boot/vmlinuz-* "$scratch/disc/vmlinuz"
}

build_programs() {
    "$python" "$here/golden.py" --build-only "$scratch/golden" x86_64-haswell
    mkdir "$scratch/files"
    mv "$scratch/golden/golden-x86_64-haswell" "$scratch/files/program"
    "$python" -m ziglang cc -target x86_64-linux-musl -O1 "$here/bochs_init.c" \
        -o "$scratch/files/init"
    (cd "$scratch/files" && printf '%s\n' init program | cpio -o -H newc --quiet) \
        >"$scratch/disc/initrd"
}

build_disc() {
    cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$scratch/disc"
    cat >"$scratch/disc/isolinux.cfg" <<'CONFIG'
DEFAULT linux
LABEL linux
  KERNEL vmlinuz
  INITRD initrd
  APPEND noxsaves clearcpuid=321,323 console=ttyS0 nokaslr nosmp mitigations=off quiet
CONFIG
    xorriso -as mkisofs -quiet -o "$scratch/disc.iso" -b isolinux.bin -c boot.cat \
        -no-emul-boot -boot-load-size 4 -boot-info-table "$scratch/disc"
}

boot() {
    cat >"$scratch/bochsrc" <<CONFIG
megs: 512
cpu: model=$cpu, count=1, ips=50000000, reset_on_triple_fault=0
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
boot: cdrom
ata0-master: type=cdrom, path=$scratch/disc.iso, status=inserted
com1: enabled=1, mode=file, dev=$scratch/serial
display_library: term
log: $scratch/log
panic: action=fatal
CONFIG
    echo c >"$scratch/commands"
    : >"$scratch/serial"
    TERM=vt100 script -qfec "exec bochs -q -f $scratch/bochsrc -rc $scratch/commands" \
        "$scratch/screen" >/dev/null 2>&1 </dev/null &
    bochs_pid=$!
}

# The serial port's output, as it comes, until the program has ended.
follow() {
    local shown=0 lines
    while [ $SECONDS -lt $seconds ]; do
        lines=$(wc -l <"$scratch/serial")
        [ "$lines" = "$shown" ] || sed -n "$((shown + 1)),${lines}p" "$scratch/serial"
        shown=$lines
        if grep -q "program ended with status" "$scratch/serial"; then
            grep -q "program ended with status 0" "$scratch/serial"
            return
        fi
        if ! kill -0 "$bochs_pid" 2>/dev/null; then
            tail -n 20 "$scratch/log" >&2
            return 1
        fi
        sleep 1
    done
    echo "no end after $seconds s" >&2
    return 1
}

mkdir "$scratch/disc"
get_kernel
build_programs
build_disc
boot
follow
echo "AVX-512 on $cpu: passed after $SECONDS s"
