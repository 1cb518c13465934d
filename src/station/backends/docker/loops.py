"""Loop devices by ioctl: one that nobody uses any more detaches itself, so that there is nothing to sweep."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_CONFIGURE, _GET_STATUS, _GET_FREE = 0x4C0A, 0x4C05, 0x4C82
_AUTOCLEAR = 4
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
"""struct loop_info64: device, inode, …, the flags at the ninth place."""
_CONFIG = struct.Struct("=II232s64x")
"""struct loop_config: descriptor, block size, loop_info64, and room for later."""
_TRIES = 64
_CONTROL = "/dev/loop-control"
_DEVICES = Path("/sys/block")


class Device:
    """Leads to its file while this is open or anybody has it mounted, and not a moment longer, however we end."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def attach(image: Path) -> Device:
    """The device that leads to `image`, a new one unless there is one: two would be two file systems on the same
    bytes. Raises OSError; without a free device that of the kernel, ENOENT where it has no loop devices."""
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return attached(image) or _new(fd)
    finally:
        os.close(fd)


def attached(image: Path) -> Device | None:
    """The device that leads to `image` already, for a box that is still mounted. It stays while this is open."""
    wanted = image.stat()
    for told in sorted(_DEVICES.glob("loop*/loop/backing_file")):
        # The name is a hint that saves opening all; the device itself is believed.
        with suppress(OSError):
            if image.name in told.read_text(errors="replace"):
                device = _open(told.parts[-3])
                if _leads_to(device, wanted):
                    return device
                device.close()
    return None


def _open(name: str) -> Device:
    path = f"/dev/{name}"
    return Device(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))


def _leads_to(device: Device, wanted: os.stat_result) -> bool:
    """Whether it does, and will as long as we have it open."""
    buffer = bytearray(_INFO.size)
    try:
        fcntl.ioctl(device.fd, _GET_STATUS, buffer)
    except OSError:
        return False
    where, inode, *_ = _INFO.unpack(buffer)
    return bool((where, inode) == (wanted.st_dev, wanted.st_ino))


def _new(image: int) -> Device:
    info = _INFO.pack(*[0] * 8, _AUTOCLEAR, b"", b"", b"", 0, 0)
    config = _CONFIG.pack(image, 0, info)
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device = _open(f"loop{fcntl.ioctl(control, _GET_FREE)}")
            try:
                fcntl.ioctl(device.fd, _CONFIGURE, config)
                return device
            except OSError as error:
                device.close()
                if error.errno != errno.EBUSY:  # another was faster
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "every free loop device was taken by others", _CONTROL)
