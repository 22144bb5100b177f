//! The size of the key/value cache.

use anyhow::{Result, ensure};

/// What decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSize {
    /// `roles.rollout.kvCacheMebibytes`.
    pub mebibytes: Option<u64>,
    /// Sequences that run at once.
    pub sequences: usize,
    /// Tokens of the longest.
    pub longest: usize,
    /// Tokens one block holds.
    pub block_size: usize,
    /// Bytes one block takes in all layers.
    pub block_bytes: usize,
    /// Bytes that the cache may take at most; None: as many as it wants.
    pub room: Option<usize>,
}

impl CacheSize {
    /// Blocks of the cache: what the manifest's mebibytes hold, else enough for every sequence that runs at once, as far as there
    /// is room. With less the scheduler lets fewer in, and preempts.
    ///
    /// # Errors
    /// When there is no room for one sequence.
    pub fn blocks(&self) -> Result<usize> {
        if let Some(mebibytes) = self.mebibytes {
            return Ok((self::mebibytes(mebibytes) / self.block_bytes).max(1));
        }
        let of_one = self.longest.div_ceil(self.block_size);
        let wanted = self.sequences.max(1).saturating_mul(of_one);
        let Some(room) = self.room else { return Ok(wanted) };
        let blocks = wanted.min(room / self.block_bytes);
        ensure!(
            blocks >= of_one,
            "the device has {} MiB for the key/value cache, a sequence of {} tokens takes {} MiB: set \
             roles.rollout.kvCacheMebibytes if there is more, shorten prompts.maxLength and generation.maxNewTokens, or give \
             the rollout role a GPU of its own (of a server of its own: --kv-cache-mebibytes, --max-model-len)",
            room >> 20,
            self.longest,
            (of_one * self.block_bytes).div_ceil(1 << 20)
        );
        Ok(blocks)
    }
}

/// So many MiB in bytes.
pub(super) fn mebibytes(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(1 << 20)
}

/// Bytes of a GPU's `free` ones, the engine's weights not yet among them, that the cache may take. An engine that has the GPU to itself
/// leaves a tenth for logits, draws and graphs, as vLLM does by default. One beside training leaves half: gradients, optimizer and
/// activations come after it, and what they need is not known before the first update.
pub(super) fn room(free: u64, weights: usize, shares_device: bool) -> usize {
    let free = usize::try_from(free).unwrap_or(usize::MAX).saturating_sub(weights);
    match shares_device {
        true => free / 2,
        false => free - free / 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size() -> CacheSize {
        CacheSize {
            mebibytes: None,
            sequences: 8,
            longest: 100,
            block_size: 16,
            block_bytes: 1 << 10,
            room: None,
        }
    }

    #[test]
    fn every_sequence_has_room_unless_the_manifest_or_the_device_says_less() {
        assert_eq!(size().blocks().unwrap(), 8 * 7);
        let given = CacheSize {
            mebibytes: Some(2),
            ..size()
        };
        assert_eq!(given.blocks().unwrap(), 2048);
        let tight = CacheSize {
            room: Some(10 << 10),
            ..size()
        };
        assert_eq!(tight.blocks().unwrap(), 10);
    }

    #[test]
    fn a_device_without_room_for_one_sequence_is_an_error_that_names_what_to_change() {
        let none = CacheSize {
            room: Some(6 << 10),
            ..size()
        };
        let error = none.blocks().unwrap_err().to_string();
        assert!(
            error.contains("kvCacheMebibytes") && error.contains("100 tokens"),
            "{error}"
        );
    }

    #[test]
    fn an_engine_beside_training_takes_half_of_what_is_free() {
        assert_eq!(room(1000, 200, true), 400);
        assert_eq!(room(1000, 200, false), 720);
        assert_eq!(room(100, 200, false), 0);
    }
}
