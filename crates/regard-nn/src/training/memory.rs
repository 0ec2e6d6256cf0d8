//! How much memory a training takes, and how much there is: asked before the first allocation, which would otherwise end the program.

use crate::config::ModelConfig;
use crate::mlp::MlpKind;

const F32: u128 = 4;

/// Numbers for each parameter, while a checkpoint is written: three, twice.
const CHECKPOINT: u128 = 6;

/// Bytes that a training of such a model holds, with `batch` sequences in a step: an estimate from above, by the largest buffers.
pub fn training_bytes(config: &ModelConfig, parameters: usize, batch: usize) -> u128 {
    let n = |x: usize| x as u128;
    let rows = n(batch) * n(config.context);
    let (width, hidden, heads, kv) =
        (n(config.width), n(config.hidden()), n(config.heads) * n(config.head_dim()), n(config.kv_heads()) * n(config.head_dim()));
    let inner = if config.mlp == MlpKind::SwiGlu { 2 * hidden } else { hidden };
    // Of each block: the stream before both sublayers and normalised; q, k, v and the heads' results; the network's two layers.
    let block = 4 * width + heads + 2 * kv + heads + inner + hidden;
    let gradients = 4 * width + hidden + 2 * heads + 2 * kv;
    let pass = rows * (n(config.layers) * block + gradients + 2 * width + n(config.vocab));
    // Parameters, gradients and two moments; a checkpoint's bytes, twice, while it is written.
    F32 * (pass + 4 * n(parameters) + CHECKPOINT * n(parameters))
}

/// What another worker of the same process holds: all but the checkpoint, which one of them writes.
pub fn worker_bytes(config: &ModelConfig, parameters: usize, batch: usize) -> u128 {
    training_bytes(config, parameters, batch) - F32 * CHECKPOINT * parameters as u128
}

/// Available memory in bytes, where the system reports it.
pub fn available_bytes() -> Option<u128> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = line.trim().trim_end_matches("kB").trim().parse::<u128>().ok()? * 1024;
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u128>().ok());
    Some(limit.map_or(free, |limit| free.min(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LanguageModel;

    #[test]
    fn estimate_is_near_what_a_large_model_takes() {
        let config = ModelConfig { width: 384, heads: 6, layers: 6, context: 256, ..ModelConfig::default() };
        let parameters = LanguageModel::new(config.clone()).expect("valid").layout().len();
        // Measured: 0.8 to 0.95 GB, without a checkpoint.
        let estimate = training_bytes(&config, parameters, 16);
        assert!((800_000_000..1_600_000_000).contains(&estimate), "{estimate}");
        assert!(training_bytes(&config, parameters, 4096) > 100_000_000_000);
    }

    /// Measured with 1, 4 and 16 workers, one part of one sequence each: 0.76, 1.44 and 3.72 GB, so 0.2 GB for each.
    #[test]
    fn workers_count() {
        let config = ModelConfig { width: 512, heads: 8, layers: 4, ..ModelConfig::default() };
        let parameters = LanguageModel::new(config.clone()).expect("valid").layout().len();
        let estimate = worker_bytes(&config, parameters, 1);
        assert!((180_000_000..300_000_000).contains(&estimate), "{estimate}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_tells_how_much_there_is() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
