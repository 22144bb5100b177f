//! How the C library's allocator treats the memory of tensors.

use std::sync::atomic::{AtomicBool, Ordering};

static KEEPS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn ppo_training_keep_memory() -> bool;
    fn ppo_training_return_memory();
}

/// Training allocates and frees the same large tensors in every layer. By default glibc maps and unmaps each of them, and the
/// kernel's page faults were 5 to 10 % of a PPO step of a 135M float32 model. After this call freed memory is kept for
/// the next tensor, as an engine's is for the weights of the next step, and lies in huge pages where the system allows it. Call it before any thread is started; where the allocator is not glibc's it does nothing.
/// <https://www.gnu.org/software/libc/manual/html_node/Malloc-Tunable-Parameters.html>
pub fn keep_memory() {
    // SAFETY: it sets parameters of malloc and touches no memory of ours.
    let agreed = unsafe { ppo_training_keep_memory() };
    KEEPS.store(agreed, Ordering::Relaxed);
    if !agreed {
        tracing::debug!("the allocator keeps its defaults");
    }
}

/// Whether this process keeps what it frees for whoever allocates next, whatever the size.
pub fn keeps_memory() -> bool {
    KEEPS.load(Ordering::Relaxed)
}

/// Gives the system what was freed so far, wherever it lies. Loading needs memory that a step does not, in pieces that what a step allocates
/// does not fill: of a 135M model in bfloat16 320 MiB stayed for the whole run.
pub fn return_memory() {
    // SAFETY: the allocator may be asked at any time.
    unsafe { ppo_training_return_memory() };
}

#[cfg(test)]
#[path = "../../../tests/src/skip.rs"]
mod skip;

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::skip::skipped;
    use super::*;
    use crate::engine::conformance::tiny;
    use crate::native::decoder_shape::DecoderShape;
    use crate::native::packed::{Matrix, PackedWeights};

    const ALONE: &str = "PPO_TEST_ALLOCATOR_ALONE";
    const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const MIB: i64 = 1 << 20;

    /// MiB that the line of `/proc/self/smaps_rollup` says.
    fn mebibytes(line: &str) -> u64 {
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let found = rollup.lines().find_map(|it| it.strip_prefix(line)).unwrap();
        found.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 10
    }

    /// So many MiB that somebody has written to.
    fn tensor(mebibytes: i64) -> Tensor {
        Tensor::ones([mebibytes * MIB / 4], (Kind::Float, Device::Cpu))
    }

    /// Runs the rest of the test in a process of its own that keeps its memory: that changes how everything is allocated.
    fn keeping_memory(test: impl FnOnce()) {
        if std::env::var_os(ALONE).is_some() {
            keep_memory();
            return test();
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            // As in a program that calls it before it starts a thread: the one that runs tests would have a heap of its own.
            .envs([(ALONE, "1"), ("MALLOC_ARENA_MAX", "1")])
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        // A run of no tests succeeds too.
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.contains(" 1 passed"), "{said}");
        if !has_huge_pages() {
            skipped(&format!("huge pages in {name}"), &format!("{HUGE_PAGES} is off"));
        }
    }

    fn has_huge_pages() -> bool {
        let setting = std::fs::read_to_string(HUGE_PAGES).unwrap_or_default();
        setting.contains("[madvise]") || setting.contains("[always]")
    }

    /// More than so many MiB are in huge pages, if the system has such.
    fn assert_in_huge_pages(least: u64) {
        if has_huge_pages() {
            let huge = mebibytes("AnonHugePages:");
            assert!(huge > least, "{huge} MiB");
        }
    }

    #[test]
    fn tensors_lie_in_huge_pages_and_what_was_freed_between_others_can_be_returned() {
        keeping_memory(|| {
            let (freed, kept) = (tensor(256), tensor(64));
            assert_in_huge_pages(256);
            drop(freed);
            let before = mebibytes("Rss:");
            return_memory();
            let after = mebibytes("Rss:");
            assert!(after + 240 < before, "{before} MiB before, {after} after");
            assert_eq!(kept.sum(Kind::Double).double_value(&[]), (64 * MIB / 4) as f64);
        });
    }

    #[test]
    fn what_the_heap_grows_by_after_it_gave_its_end_back_lies_in_huge_pages_too() {
        keeping_memory(|| {
            let fill = || (0..16).map(|_| tensor(16)).collect::<Vec<_>>();
            for _ in 0..2 {
                let tensors = fill();
                assert_in_huge_pages(215);
                drop(tensors);
                return_memory();
            }
        });
    }

    #[test]
    fn an_engines_weights_lie_in_huge_pages_though_no_matrix_is_as_large_as_one() {
        keeping_memory(|| {
            // 2.25 MiB a layer, of which the largest matrix is one.
            let shape = DecoderShape {
                layers: 80,
                hidden: 256,
                heads: 4,
                kv_heads: 2,
                head_dim: 64,
                intermediate: 512,
                inv_freq: vec![1.0; 32],
                ..tiny(Kind::Float)
            };
            let mut weights = PackedWeights::new(&shape).unwrap();
            let parts = [
                (Matrix::Qkv, 0),
                (Matrix::Qkv, 1),
                (Matrix::Qkv, 2),
                (Matrix::Output, 0),
                (Matrix::GateUp, 0),
                (Matrix::GateUp, 1),
                (Matrix::Down, 0),
            ];
            for layer in 0..shape.layers {
                for (matrix, part) in parts {
                    let (rows, columns) = weights.size(matrix, part).unwrap();
                    let zeros = vec![0; rows * columns * 4];
                    weights.set_rows(layer, (matrix, part), 0, &zeros, 1).unwrap();
                }
            }
            assert_in_huge_pages(150);
        });
    }
}
