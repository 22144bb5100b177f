//! Shared libraries that a machine may have or not: they are looked for when the process runs, so that one binary serves both.

use std::path::PathBuf;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// What libtorch computes with on NVIDIA's GPUs.
const TORCH_CUDA: &str = "libtorch_cuda.so";

/// Opens a library by its name, where the loader looks, and keeps it for the life of the process.
///
/// # Errors
/// The loader's words.
pub fn open(name: &str) -> Result<&'static Library, String> {
    keep(name.into(), RTLD_LOCAL)
}

/// Loads libtorch's CUDA part, whose initialisers make it known to the CPU part. It has to be of the same build: what lies beside
/// the CPU part in use is preferred, as in a wheel, where it finds NVIDIA's libraries by itself (`../../nvidia/*/lib`).
///
/// Nothing may have asked libtorch about CUDA before: it asks once for the life of the process (`getCUDAHooks` in
/// `aten/src/ATen/detail/CUDAHooksInterface.cpp`).
///
/// # Errors
/// The loader's words.
pub fn load_torch_cuda() -> Result<(), String> {
    let beside = torch_cpu().map(|path| path.with_file_name(TORCH_CUDA));
    let name = beside.filter(|path| path.exists()).unwrap_or_else(|| TORCH_CUDA.into());
    keep(name, RTLD_GLOBAL).map(drop)
}

/// The CPU part that this process is linked to, as the kernel has mapped it.
fn torch_cpu() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.ends_with("/libtorch_cpu.so")));
    Some(PathBuf::from(path?))
}

fn keep(name: PathBuf, visibility: i32) -> Result<&'static Library, String> {
    // SAFETY: the initialisers are those of NVIDIA's and PyTorch's libraries, which are made to be loaded at any time.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | visibility) };
    // Never closed: threads and exit handlers of these libraries run until the process ends.
    // With what it was caused by, which are the loader's words.
    let library = library.map_err(|error| format!("{:#}", anyhow::Error::new(error)));
    library.map(|library| &*Box::leak(Box::new(library)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_part_in_use_is_found_and_a_library_that_is_not_there_is_named() {
        assert!(torch_cpu().unwrap().exists());
        let error = open("libno-such-thing.so.7").unwrap_err();
        assert!(error.contains("libno-such-thing.so.7"), "{error}");
    }
}
