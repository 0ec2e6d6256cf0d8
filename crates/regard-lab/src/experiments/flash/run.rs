//! Tiling: the memory of attention against its length, tiled and with the weights laid out.

use super::Flash;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::memory;
use crate::options::{check_list, sizes};
use crate::rows::{self, Row};
use crate::statistics::draws::Draw;
use clap::Args;
use ndarray::{Array2, Array4};
use regard::Attention;
use regard_plot::Table;
use serde::Serialize;
use std::time::Instant;

/// Measure the memory of attention against its length: tiled, and with all weights laid out
///
/// One head in single precision. Both ways give the same output, to rounding. Writes flash_memory.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard flash --seq 4096,16384")]
pub struct FlashConfig {
    /// Numbers of tokens
    #[arg(long, value_parser = sizes, default_value = "1024,2048,4096,8192", value_name = "LIST")]
    pub seq: ::std::vec::Vec<usize>,
    /// Head dimension
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub d_k: usize,
    /// Which draw
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for FlashConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Bytes that the process holds now, and held at most since [`set_back`], where the system tells.
fn resident(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| 1024.0 * kilobytes)
}

/// Forget the peak so far.
fn set_back() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The result of some work, its time in seconds, and the bytes that it held beyond those held before.
fn measured<R>(work: impl FnOnce() -> Result<R>) -> Result<(R, f64, Option<f64>)> {
    let told = set_back();
    let before = resident("VmRSS");
    let start = Instant::now();
    let result = work()?;
    let seconds = start.elapsed().as_secs_f64();
    let more = resident("VmHWM").zip(before).filter(|_| told).map(|(peak, before)| (peak - before).max(0.0));
    Ok((result, seconds, more))
}

/// As a textbook has it: all scores, all weights, then the product.
fn laid_out(q: &Array2<f32>, k: &Array2<f32>, v: &Array2<f32>) -> Array2<f32> {
    let mut scores = q.dot(&k.t()) / (q.ncols() as f32).sqrt();
    for mut row in scores.rows_mut() {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.mapv_inplace(|s| (s - top).exp());
        let sum = row.sum();
        row /= sum;
    }
    scores.dot(v)
}

impl FlashConfig {
    /// `flash_memory`.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_list("seq", &self.seq, "1024,4096")?;
        crate::options::check_d_k(&[self.d_k])?;
        for &n in &self.seq {
            require((2..=65_536).contains(&n), "seq", n, "from 2 to 65536 tokens")?;
            memory::check("the weights, laid out", 2 * 4 * (n as u128).pow(2))?;
        }
        let columns = [
            ("seq", "tokens"),
            ("method", "method"),
            ("laid_out", "bytes of what it must hold"),
            ("measured", "bytes measured"),
            ("milliseconds", "time (ms)"),
            ("apart", "largest difference of the outputs"),
        ];
        let caption = format!("Memory of attention beyond q, k and v: one head, d = {}, float32", self.d_k);
        let mut table = rows::table("flash_memory", &caption, &columns);
        for &n in &self.seq {
            let mut numbers = Draw::named(self.seed, "flash", [n, self.d_k], 0);
            let [q, k, v] = [(); 3].map(|()| {
                let mut x = vec![0.0; n * self.d_k];
                numbers.normal(&mut x);
                Array2::from_shape_vec((n, self.d_k), x.into_iter().map(|x| x as f32).collect()).expect("the length is that of the shape")
            });
            let four = |x: &Array2<f32>| -> Array4<f32> { x.clone().into_shape_with_order((1, 1, n, self.d_k)).expect("one head") };
            let (q4, k4, v4) = (four(&q), four(&k), four(&v));
            let (tiled, tiled_time, tiled_bytes) = measured(|| Ok(Attention::new().forward(&q4, &k4, &v4)?.out))?;
            progress.advance(1);
            let (whole, whole_time, whole_bytes) = measured(|| Ok(laid_out(&q, &k, &v)))?;
            progress.advance(1);
            let apart = tiled
                .iter()
                .zip(&whole)
                .map(|(a, b)| f64::from((a - b).abs()))
                .fold(0.0, |m: f64, x| if x.is_nan() { x } else { m.max(x) });
            let out = n * self.d_k * size_of::<f32>();
            let weights = n * n * size_of::<f32>();
            for (method, must, bytes, seconds) in
                [("tiled", out, tiled_bytes, tiled_time), ("laid out", out + weights, whole_bytes, whole_time)]
            {
                Row::default().of(n).of(method).of(must).of(bytes).of(1e3 * seconds).of(apart).put(&mut table);
            }
        }
        let mut tables = signed(vec![table], &origin::<Flash>(self, self.seed, "differs from run to run: memory and time")?);
        tables[0].origin.push(("threads".to_owned(), rayon::current_num_threads().to_string()));
        Ok(tables)
    }
}
