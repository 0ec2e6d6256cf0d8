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
/// One head in single precision. Both methods give the same output, to rounding; each is measured in a fresh process. Writes
/// flash_memory.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab flash --seq 4096,16384")]
pub struct FlashConfig {
    /// Numbers of tokens
    #[arg(long, value_parser = sizes, default_value = "1024,2048,4096,8192", value_name = "LIST")]
    pub seq: ::std::vec::Vec<usize>,
    /// Head dimension
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub d_k: usize,
    /// Seed of the draw
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Measure one method in this process
    #[arg(long, hide = true, value_parser = METHODS)]
    #[serde(skip)]
    pub only: Option<String>,
}

impl Default for FlashConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The two methods, as the table names them.
const METHODS: [&str; 2] = ["tiled", "laid out"];

/// Resident bytes of this process: `VmRSS` now, `VmHWM` at most since [`reset_peak`]; `None` where the system does not report them.
fn resident(field: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| 1024.0 * kilobytes)
}

/// Resets the peak of resident memory.
fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The result of `work`, its time in seconds, and the peak of resident bytes beyond those before.
fn measured<R>(work: impl FnOnce() -> Result<R>) -> Result<(R, f64, Option<f64>)> {
    let reset = reset_peak();
    let before = resident("VmRSS");
    let start = Instant::now();
    let result = work()?;
    let seconds = start.elapsed().as_secs_f64();
    let more = resident("VmHWM").zip(before).filter(|_| reset).map(|(peak, before)| (peak - before).max(0.0));
    Ok((result, seconds, more))
}

/// A measurement that can be true: not below the bytes that must be held.
fn plausible(bytes: Option<f64>, must: usize) -> Option<f64> {
    bytes.filter(|bytes| *bytes >= must as f64)
}

/// Bytes beyond q, k and v that a method must hold.
fn must_hold(method: &str, n: usize, d_k: usize) -> usize {
    let weights = if method == METHODS[0] { 0 } else { n * n };
    (n * d_k + weights) * size_of::<f32>()
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
    /// q, k and v, row by row: no temporary is left whose memory a measurement could reuse.
    fn inputs(&self, n: usize) -> [Array2<f32>; 3] {
        let mut numbers = Draw::named(self.seed, "flash", [n, self.d_k], 0);
        let mut row = vec![0.0; self.d_k];
        [(); 3].map(|()| {
            let mut x = Array2::zeros((n, self.d_k));
            for mut to in x.rows_mut() {
                numbers.normal(&mut row);
                to.iter_mut().zip(&row).for_each(|(to, x)| *to = *x as f32);
            }
            x
        })
    }

    /// Output, seconds and bytes of one method in this process.
    fn measure(&self, n: usize, method: &str) -> Result<(Array2<f32>, f64, Option<f64>)> {
        let [q, k, v] = self.inputs(n);
        if method != METHODS[0] {
            return measured(|| Ok(laid_out(&q, &k, &v)));
        }
        let four = |x: Array2<f32>| -> Array4<f32> { x.into_shape_with_order((1, 1, n, self.d_k)).expect("one head") };
        let (q, k, v) = (four(q), four(k), four(v));
        let (out, seconds, bytes) = measured(|| Ok(Attention::new().forward(&q, &k, &v)?.out))?;
        Ok((out.into_shape_with_order((n, self.d_k)).expect("one head"), seconds, bytes))
    }

    /// Seconds and bytes of one method in a fresh process of the command, where no freed memory can be reused; `None` where this process
    /// is not the command, or the child fails.
    fn measure_apart(&self, n: usize, method: &str) -> Option<(f64, Option<f64>)> {
        let program = std::env::current_exe().ok().filter(|path| path.file_stem().is_some_and(|name| name == "regard"))?;
        let folder = tempfile::tempdir().ok()?;
        let (n, d_k, seed) = (n.to_string(), self.d_k.to_string(), self.seed.to_string());
        let status = std::process::Command::new(program)
            .args(["flash", "--quiet", "--seq", &n, "--d-k", &d_k, "--seed", &seed, "--only", method, "--out"])
            .arg(folder.path())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .ok()?;
        let table = Table::read(&folder.path().join("flash_memory.csv")).ok().filter(|_| status.success())?;
        let row = table.rows.first()?;
        let bytes = table.value(row, "measured").number();
        Some((table.number(row, "milliseconds") / 1e3, bytes))
    }

    /// `flash_memory`.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_list("seq", &self.seq, "1024,4096")?;
        crate::options::check_d_k(&[self.d_k])?;
        for &n in &self.seq {
            require((2..=65_536).contains(&n), "seq", n, "from 2 to 65536 tokens")?;
            memory::check("all weights", 2 * 4 * (n as u128).pow(2))?;
        }
        let columns = [
            ("seq", "tokens"),
            ("method", "method"),
            ("laid_out", "bytes that must be held"),
            ("measured", "bytes measured"),
            ("milliseconds", "time (ms)"),
            ("apart", "largest difference of the outputs"),
        ];
        let caption = format!("Memory of attention beyond q, k and v: one head, d = {}, float32", self.d_k);
        let mut table = rows::table("flash_memory", &caption, &columns);
        for &n in &self.seq {
            if let Some(method) = &self.only {
                let (_, seconds, bytes) = self.measure(n, method)?;
                let must = must_hold(method, n, self.d_k);
                let row = Row::default().of(n).of(method.as_str()).of(must).of(plausible(bytes, must)).of(1e3 * seconds);
                row.of(regard_plot::Value::Missing).put(&mut table);
                continue;
            }
            let apart = METHODS.map(|method| self.measure_apart(n, method));
            let here = METHODS.map(|method| self.measure(n, method));
            let [tiled, whole] = here;
            let (tiled, whole) = (tiled?, whole?);
            let distance = tiled.0.iter().zip(&whole.0).map(|(a, b)| f64::from((a - b).abs()));
            let distance = distance.fold(0.0, |m: f64, x| if x.is_nan() { x } else { m.max(x) });
            for (method, (apart, here)) in METHODS.into_iter().zip(apart.into_iter().zip([(tiled.1, tiled.2), (whole.1, whole.2)])) {
                let (seconds, bytes) = apart.unwrap_or(here);
                let must = must_hold(method, n, self.d_k);
                Row::default().of(n).of(method).of(must).of(plausible(bytes, must)).of(1e3 * seconds).of(distance).put(&mut table);
                progress.advance(1);
            }
        }
        let mut tables = signed(vec![table], &origin::<Flash>(self, self.seed, "differs from run to run: memory and time")?);
        tables[0].origin.push(("threads".to_owned(), rayon::current_num_threads().to_string()));
        Ok(tables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unwatched;

    #[test]
    fn no_measurement_is_below_what_must_be_held() {
        assert_eq!(plausible(Some(0.14e6), 4_456_448), None, "memory of before was reused");
        assert_eq!(plausible(Some(4.5e6), 4_456_448), Some(4.5e6));
        let config = FlashConfig { seq: vec![64, 1024], ..FlashConfig::default() };
        let table = config.run(&Unwatched).unwrap().remove(0);
        assert_eq!(table.rows.len(), 4);
        for row in &table.rows {
            let (measured, must) = (table.number(row, "measured"), table.number(row, "laid_out"));
            assert!(measured.is_nan() || measured >= must, "{measured} measured, {must} must be held");
            assert!(table.number(row, "apart") < 1e-5);
        }
    }
}
