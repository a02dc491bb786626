"""The layers that a sandboxed process puts on itself before it runs code of others. Standard library only.

limits      resource limits: CPU time, memory, file size, open files, stack; no core files
namespaces  a network and an IPC name space of its own
user        where it began as root: a transient user without privileges, and a limit on its threads
landlock    the kernel's path rules: reads of the interpreter and the system's libraries, writes to scratch only
seccomp     a filter of system calls: no new process, no other program, no socket, no signal, no tracing, no mount

Source: Linux man-pages setrlimit(2), unshare(2), capabilities(7), landlock(7), seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False  # typing's own would load typing, which takes longer than all the rest
if TYPE_CHECKING:
    from typing import Any

LAYERS = ("limits", "namespaces", "user", "landlock", "seccomp")
"""All layers, in the order they are put on."""


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def put_on(names: list[str], config: dict[str, Any]) -> dict[str, str]:
    """Puts these layers on this process for good. Returns, for each, an empty text or why it did not work."""
    states: dict[str, str] = {}
    for name in LAYERS:
        if name in names:
            try:
                _PUT_ON[name](config)
                states[name] = ""
            except (OSError, ValueError, AttributeError, KeyError) as error:
                states[name] = f"{type(error).__name__}: {error}"
    if hasattr(_libc(), "prctl"):
        _checked(_libc().prctl(1, 9, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")  # SIGKILL when the parent dies
    return states


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _limits(config: dict[str, Any]) -> None:
    import resource  # here, since the module does not exist everywhere and this file is read everywhere

    cpu, memory = int(config["cpu_seconds"]), int(config["memory_bytes"])
    wanted = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (config["file_bytes"], config["file_bytes"]),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (64 << 20, 64 << 20),
    }
    for which, (soft, hard) in wanted.items():
        top = resource.getrlimit(which)[1]
        if top != resource.RLIM_INFINITY:
            soft, hard = min(soft, top), min(hard, top)
        resource.setrlimit(which, (soft, hard))


_NEW_NETWORK, _NEW_IPC, _NEW_USER = 0x40000000, 0x08000000, 0x10000000


def _namespaces(config: dict[str, Any]) -> None:
    if _libc().unshare(_NEW_NETWORK | _NEW_IPC) != 0:
        _checked(_libc().unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC), "unshare")
        _keep_capabilities(0)


_READ_ANY_FILE = 1 << 2  # CAP_DAC_READ_SEARCH


def _user(config: dict[str, Any]) -> None:
    """Becomes the transient user. Where path rules follow, it may still pass the modes of folders, since the
    interpreter may lie in a folder that only root may enter; the path rules then say what it may read."""
    import resource

    if os.getuid() != 0:
        raise OSError(errno.EPERM, "only root can change to another user; this process has its user's rights")
    user, threads = config["user"], config["threads"]
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    os.setgroups([])
    os.setresgid(user, user, user)
    _checked(_libc().prctl(8, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setresuid(user, user, user)
    _keep_capabilities(_READ_ANY_FILE if "landlock" in config["layers"] else 0)


def _keep_capabilities(mask: int) -> None:
    header = struct.pack("=Ii", 0x20080522, 0)
    _checked(_libc().capset(header, struct.pack("=6I", mask, mask, 0, 0, 0, 0)), "capset")


_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_REMOVE_FILE, _MAKE_FILE, _TRUNCATE = 1 << 5, 1 << 8, 1 << 14


def _landlock(config: dict[str, Any]) -> None:
    _no_new_privileges()
    version = _checked(_libc().syscall(444, None, ctypes.c_size_t(0), 1), "landlock_create_ruleset")
    handled = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = struct.pack("=QQQ", handled, 3, 3)[:size]  # all of: files; TCP; signals and abstract sockets
    ruleset = _checked(_libc().syscall(444, rules, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    try:
        for path in config["readable"]:
            _allow(ruleset, path, handled & (_READ_FILE | _READ_DIR))
        _allow(ruleset, "/dev/null", handled & (_READ_FILE | _WRITE_FILE | _TRUNCATE))
        in_scratch = _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | _TRUNCATE
        _allow(ruleset, config["scratch"], handled & in_scratch)
        _checked(_libc().syscall(446, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # this system has no such folder
    try:
        if not os.path.isdir(path):
            access &= ~(_READ_DIR | _REMOVE_FILE | _MAKE_FILE)
        rule = struct.pack("=Qi", access, opened)
        _checked(_libc().syscall(445, ruleset, 1, rule, 0), f"landlock_add_rule({path})")
    finally:
        os.close(opened)


def _no_new_privileges() -> None:
    _checked(_libc().prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


# Numbers of the system calls that are refused: on x86-64, on 64-bit ARM; -1 where the call does not exist.
_REFUSED = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "setsid": (112, 157), "setpgid": (109, 154), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "userfaultfd": (323, 282), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "setrlimit": (160, 164),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "utime": (132, -1), "utimes": (235, -1),
    "utimensat": (280, 88), "futimesat": (261, -1), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "acct": (163, 89), "syslog": (103, 116), "iopl": (172, -1), "ioperm": (173, -1), "personality": (135, 92),
}  # fmt: skip
_CLONE, _CLONE3, _PRLIMIT = (56, 220), 435, (302, 261)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


def _seccomp(config: dict[str, Any]) -> None:
    _no_new_privileges()
    filters = b"".join(struct.pack("=HBBI", *step) for step in filter_steps(os.uname().machine))
    kept = ctypes.create_string_buffer(filters, len(filters))
    program = struct.pack("@HP", len(filters) // 8, ctypes.addressof(kept))
    _checked(_libc().prctl(22, 2, program, 0, 0), "prctl(PR_SET_SECCOMP)")


def filter_steps(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value). Raises KeyError for a machine it does not know.

    A refused call gives EPERM. A new process is refused, a new thread is not: `clone` passes with CLONE_THREAD only,
    and `clone3`, whose flags a filter cannot read, claims not to exist, so that the C library takes `clone`.
    """
    column, architecture = _ARCHITECTURES[machine]
    refuse = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), refuse, (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, 0x40000000), refuse]  # the second set of call numbers
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    steps += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, 16), (_ANY_BIT, 1, 0, 0x10000), refuse, allow]
    reads_only = [(_LOAD, 0, 0, 32), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, 36), (_EQUAL, 1, 0, 0), refuse, allow]
    steps += [(_EQUAL, 0, 6, _PRLIMIT[column]), *reads_only]
    for numbers in _REFUSED.values():
        if numbers[column] >= 0:
            steps += [(_EQUAL, 0, 1, numbers[column]), refuse]
    return [*steps, allow]


_PUT_ON = {
    "limits": _limits,
    "namespaces": _namespaces,
    "user": _user,
    "landlock": _landlock,
    "seccomp": _seccomp,
}
