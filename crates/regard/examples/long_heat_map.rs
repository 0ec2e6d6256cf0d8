//! A picture of the attention of 100,000 tokens, without the matrix: 10,000,000,000 weights would take 40 GB; the
//! picture of 512 x 512 cells is pooled while the tiles go by.
//!
//! ```text
//! cargo run --release -p regard --example long_heat_map [file.ppm]
//! REGARD_EXAMPLE_SMALL=1 cargo run --release -p regard --example long_heat_map
//! ```
//!
//! The pattern is made up: tokens attend to their own topic, which changes now and then and comes back, to their
//! neighbours, and to the first token.

use ndarray::{Array4, ArrayView2, Axis};
use regard::{Attention, Bias, HeatMap};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Instant;

const CELLS: usize = 512;
const HEAD_DIM: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let small = std::env::var_os("REGARD_EXAMPLE_SMALL").is_some_and(|x| x == "1");
    let tokens = if small { 4096 } else { 100_000 };
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/long_heat_map.ppm"), PathBuf::from);

    let x = topics(tokens);
    // A slope so that the distance matters over the whole length, whatever it is.
    let slope = 4.0 / tokens as f64;
    let attention = Attention::new().causal().bias(Bias::Alibi(vec![slope]));

    println!("{tokens} tokens, {:.0} million weights ...", (tokens as f64).powi(2) / 1e6);
    let start = Instant::now();
    let map = attention.heat_map(&x, &x, CELLS, CELLS)?;
    println!("pooled to {CELLS} x {CELLS} in {:.1} s", start.elapsed().as_secs_f64());
    match peak_memory() {
        Some(mib) => println!("peak memory {mib:.0} MiB; the matrix would be {:.0} MiB", (tokens as f64).powi(2) * 4.0 / 1_048_576.0),
        None => println!("peak memory: this system does not say"),
    }
    write_picture(&path, &map)?;
    println!("{}", path.display());
    Ok(())
}

/// Vectors that say what each token is about: a topic, a position, and some noise.
fn topics(tokens: usize) -> Array4<f32> {
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let centres: Vec<f32> = (0..6 * HEAD_DIM).map(|_| 3.0 * random()).collect();
    // Fourteen stretches of uneven length, six topics.
    let stretch = |i: usize| ((i as f64 / tokens as f64).powf(0.8) * 14.0) as usize;
    let mut x = Array4::zeros((1, 1, tokens, HEAD_DIM));
    for (i, mut row) in x.index_axis_mut(Axis(0), 0).index_axis_mut(Axis(0), 0).outer_iter_mut().enumerate() {
        let topic = stretch(i) * 5 % 6;
        for (d, value) in row.iter_mut().enumerate() {
            *value = centres[topic * HEAD_DIM + d] + random();
        }
    }
    x
}

/// Five colours of viridis, which is read alike by everybody and in grey; linear in between.
const VIRIDIS: [[f32; 3]; 5] = [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];

fn colour(x: f32) -> [u8; 3] {
    let x = x.clamp(0.0, 1.0) * 4.0;
    let i = (x as usize).min(3);
    let t = x - i as f32;
    std::array::from_fn(|c| (VIRIDIS[i][c] * (1.0 - t) + VIRIDIS[i + 1][c] * t).round() as u8)
}

/// A portable pixmap; the brightness is the logarithm of the mean weight, over four powers of ten. Hidden cells are white.
fn write_picture(path: &std::path::Path, map: &HeatMap<f32>) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mean: ArrayView2<'_, f32> = map.mean.index_axis(Axis(0), 0).index_axis_move(Axis(0), 0);
    let top = mean.iter().fold(f32::MIN_POSITIVE, |m, &x| m.max(x));
    let mut file = BufWriter::new(File::create(path)?);
    write!(file, "P6\n{} {}\n255\n", mean.ncols(), mean.nrows())?;
    for &x in mean {
        let pixel = if x == 0.0 { [255; 3] } else { colour(1.0 + (x / top).log10() / 4.0) };
        file.write_all(&pixel)?;
    }
    file.flush()
}

/// The most memory that this process has had, in MiB, where the system says so.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}
