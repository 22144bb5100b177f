//! Compiles `native/*.cpp` against libtorch and tells the linker where libtorch lies at run time.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=native");
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
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .flag("-fopenmp")
        .flag("-Wno-unused-parameter")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .files(&sources)
        .compile("ppo_native");
    println!("cargo:rustc-link-lib=dylib=gomp");
}
