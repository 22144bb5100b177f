//! Compiles `native/*.cpp` against libtorch and tells the linker where libtorch lies at run time.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // Not `native/cuda`, which is a library of its own.
    for path in std::fs::read_dir("native").into_iter().flatten().flatten() {
        if !path.path().ends_with("cuda") {
            println!("cargo:rerun-if-changed={}", path.path().display());
        }
    }
    let libtorch = PathBuf::from(std::env::var("LIBTORCH").unwrap_or_default());
    let Ok(libtorch) = libtorch.canonicalize() else {
        println!(
            "cargo:warning=libtorch is not at {}: run `make libtorch` first",
            libtorch.display()
        );
        std::process::exit(1);
    };
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libtorch.join("lib").display());

    let mut sources: Vec<PathBuf> = std::fs::read_dir("native")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    sources.sort();
    if sources.is_empty() {
        return;
    }
    let mut plain = cc::Build::new();
    plain
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .flag("-fopenmp")
        .flag("-Wno-unused-parameter")
        .include("native/declarations")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"));
    let x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    let (kernels, others): (Vec<_>, Vec<_>) = sources.iter().partition(|path| instructions(path).is_some());
    plain
        .clone()
        .files(others)
        // Loops with a bound on a value become vectors without AVX-512's masks only so: a comparison may not trap, and each side of the
        // bound is not made a path of its own. The exponential of a Zen 3 is six times as fast.
        .flag_if_supported("-fno-trapping-math")
        .flag_if_supported("-fno-thread-jumps")
        .compile("ppo_native");
    for path in kernels {
        let mut build = plain.clone();
        // A multiply-add is fused where the kernels say so, not where the optimiser finds one: results must not depend on it.
        build.file(path).flag("-ffp-contract=off");
        for flag in instructions(path).into_iter().flatten().filter(|_| x86) {
            build.flag(flag);
        }
        build.compile(&path.file_stem().unwrap_or_default().to_string_lossy());
    }
    println!("cargo:rustc-link-lib=dylib=gomp");
}

/// Flags of the kernel files, which are compiled once per instruction set and chosen among at run time; None for other files.
fn instructions(path: &Path) -> Option<&'static [&'static str]> {
    match path.file_stem()?.to_str()? {
        "decoder_portable" => Some(&[]),
        "decoder_avx2" => Some(&["-mavx2", "-mfma"]),
        "decoder_avx512" => Some(&["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]),
        "decoder_avx512_bf16" | "decoder_amx" => Some(&[
            "-mavx512f",
            "-mavx512bw",
            "-mavx512dq",
            "-mavx512vl",
            "-mavx512bf16",
            "-mfma",
        ]),
        _ => None,
    }
}
