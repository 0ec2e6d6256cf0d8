//! A long text through a model of SmolLM2's shape (30 blocks, 576 wide, 9 query and 3 key/value heads, 49,152 tokens), the last row's
//! logits wanted: how much memory it takes. Ends with an error when that is more than 1.2 times the weights and 300 MB.
//!
//! ```text
//! cargo run --release -p regard-nn --example long_pass -- [f32|bf16] [tokens]
//! ```
//!
//! The weights are random numbers in a safetensors file, which is written first and used as it is.

use regard_nn::layers::activation::Activation;
use regard_nn::layers::attention::{AttentionConfig, Projection};
use regard_nn::layers::mlp::MlpConfig;
use regard_nn::layers::norm::NormKind;
use regard_nn::layers::positions::Rotary;
use regard_nn::layers::stack::{BlockConfig, BlockWiring};
use regard_nn::models::transformer::{EmbeddingConfig, HeadConfig, Transformer, TransformerConfig};
use regard_nn::random::Draws;
use regard_nn::tensors::{Layout, Order, SafetensorsFile};
use regard_nn::{Keep, MaskKind, Pass, Wanted};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const VOCAB: usize = 49_152;

fn smollm2(layers: usize) -> TransformerConfig {
    let width = 576;
    let attention = AttentionConfig {
        kv_heads: 3,
        projection: Projection::Separate,
        order: Order::OutIn,
        rotary: Some(Rotary::new(100_000.0)),
        ..AttentionConfig::new(width, 9)
    };
    let mlp = MlpConfig { gated: true, order: Order::OutIn, ..MlpConfig::new(width, 1536, Activation::Silu) };
    let norm = (NormKind::Rms, 1e-5);
    let block = |i| BlockConfig::new(format!("blocks.{i}"), BlockWiring::PreNorm, norm, attention, mlp);
    TransformerConfig {
        width,
        embedding: EmbeddingConfig { vocab: VOCAB, width, ..EmbeddingConfig::default() },
        blocks: (0..layers).map(block).collect(),
        last_norm: Some(norm),
        head: Some(HeadConfig { tied: true, ..HeadConfig::default() }),
    }
}

/// A file with small random numbers for every tensor, written piece by piece.
fn write_weights(path: &Path, layout: &Layout, wide: bool) -> std::io::Result<()> {
    let (size, dtype) = if wide { (4, "F32") } else { (2, "BF16") };
    let entries = layout.entries().iter().map(|e| {
        let (start, end) = (size * e.range.start, size * e.range.end);
        format!("\"{}\":{{\"dtype\":\"{dtype}\",\"shape\":{:?},\"data_offsets\":[{start},{end}]}}", e.name, e.shape)
    });
    let mut header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut draws = Draws::at(1, &[0x10E6]);
    for entry in layout.entries() {
        let gain = entry.name.ends_with("gain");
        for _ in entry.range.clone() {
            let x = if gain { 1.0 } else { 0.04 * (draws.uniform() - 0.5) } as f32;
            let bytes = x.to_le_bytes();
            file.write_all(if wide { &bytes } else { &bytes[2..] })?;
        }
    }
    file.flush()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let small = std::env::var_os("REGARD_EXAMPLE_SMALL").is_some();
    let wide = arguments.next().is_some_and(|word| word == "f32");
    let count: usize = arguments.next().map_or(Ok(if small { 64 } else { 8192 }), |n| n.parse())?;
    let model = Transformer::new(&smollm2(if small { 2 } else { 30 }));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    write_weights(&path, model.layout(), wide)?;
    let file = SafetensorsFile::read(&path)?;
    let weights = model.bind::<f32>(&file)?;
    let ids: Vec<u32> = (0..count as u64).map(|i| (i * i % VOCAB as u64) as u32).collect();
    let start = Instant::now();
    let mut acts = model.plan(1, count, Keep::Discard);
    let pass = Pass { wanted: Wanted::LastRow, ..Pass::new(1, count, MaskKind::Causal) };
    model.forward(&weights, &ids, &pass, &mut acts)?;
    let seconds = start.elapsed().as_secs_f64();
    if acts.logits().len() != VOCAB || acts.logits().iter().any(|x| !x.is_finite()) {
        return Err("the logits of the last row are not there".into());
    }
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    let size = megabytes(model.layout().len() * if wide { 4 } else { 2 });
    let most = 1.2 * size + 300.0;
    let Some(peak) = peak_megabytes() else {
        println!("{{\"tokens\": {count}, \"seconds\": {seconds:.1}, \"weights_megabytes\": {size:.0}, \"peak_megabytes\": null}}");
        return Ok(());
    };
    println!(
        "{{\"tokens\": {count}, \"seconds\": {seconds:.1}, \"weights_megabytes\": {size:.0}, \"peak_megabytes\": {peak:.0}, \"allowed\": \
            {most:.0}}}"
    );
    if peak > most { Err(format!("{peak:.0} MB are more than {most:.0} MB").into()) } else { Ok(()) }
}

/// The most memory that this process has had, where the system tells.
fn peak_megabytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? * 1.024e-3)
}
