//! How glibc's allocator treats a training process's memory.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Training allocates and frees the same large tensors in every layer. By default glibc maps and unmaps each of them, and a
/// quarter of a PPO step goes into the kernel's page faults. So: tensors stay on the heap (`mmap_max`, `trim_threshold`), of
/// which there is one (`arena_max`), in huge pages (`hugetlb`). glibc reads this at start and has no call for huge pages.
/// <https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html>
const TUNABLES: &str = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=34359738368:glibc.malloc.arena_max=1:\
                        glibc.malloc.hugetlb=1";

const VARIABLE: &str = "GLIBC_TUNABLES";

/// Starts this program again, in this process and with the same arguments, with glibc tuned for training. Does nothing where
/// `GLIBC_TUNABLES` is set already, by the user or by this. Call it before any thread is started.
///
/// It returns only where it had nothing to do or the system refused; training then works as well, more slowly.
pub fn tune() {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) || std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let error = again.args(arguments).env(VARIABLE, OsStr::new(TUNABLES)).exec();
    tracing::debug!("the allocator keeps its defaults: cannot start again: {error}");
}
