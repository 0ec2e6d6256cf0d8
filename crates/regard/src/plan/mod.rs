//! Options are validated once and become a `Plan`, which all passes of a call share.

mod fingerprint;
mod options;
mod packed;
mod offset;

pub use offset::GlobalOffset;
pub(crate) use offset::Progress;
pub(crate) use options::Dropout;
use options::Offset;
pub use options::{Attention, Scale};
pub use packed::CuSeqlens;

use crate::bias::Bias;
use crate::error::{Error, Result, Shape4, check_length};
use crate::mask::{HeadPosition, Mask};
use ndarray::ArrayView4;
use regard_simd::{Level, Real, Storage, pool};
use std::sync::atomic::Ordering;

/// Upper bound on threads: more would take minutes to start.
const MAX_THREADS: usize = 4096;

/// Multiply-adds below which starting a thread costs more than it gains.
pub(crate) const WORTH_A_THREAD: usize = 1 << 18;

/// Sizes of the tensors of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dims {
    pub(crate) batch: usize,
    pub(crate) heads_q: usize,
    pub(crate) heads_kv: usize,
    pub(crate) seq_q: usize,
    pub(crate) seq_kv: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
}

impl Dims {
    pub(crate) fn check(q: &[usize], k: &[usize], v: Option<&[usize]>) -> Result<Self> {
        let (qs, ks) = (Shape4::from(q), Shape4::from(k));
        if k[0] != q[0] {
            return Err(Error::Batch { operand: "k", shape: ks, q: qs });
        }
        if q[3] != k[3] {
            return Err(Error::HeadDim { q: qs, k: ks });
        }
        if let Some(v) = v {
            let vs = Shape4::from(v);
            if v[0] != q[0] {
                return Err(Error::Batch { operand: "v", shape: vs, q: qs });
            }
            if v[1] != k[1] {
                return Err(Error::KeyValueHeads { k: ks, v: vs });
            }
            if v[2] != k[2] {
                return Err(Error::KeyValueLength { k: ks, v: vs });
            }
        }
        let (heads_q, heads_kv) = (q[1], k[1]);
        // No query heads at all is an empty result, whatever the keys are.
        if heads_q != 0 && (heads_kv == 0 || heads_q % heads_kv != 0) {
            return Err(Error::HeadGroups { q: qs, k: ks, heads_q, heads_kv });
        }
        Ok(Self { batch: q[0], heads_q, heads_kv, seq_q: q[2], seq_kv: k[2], head_dim: q[3], value_dim: v.map_or(0, |v| v[3]) })
    }

    /// Shape of the scores.
    pub(crate) const fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seq_q, self.seq_kv]
    }

    /// Shape of the result.
    pub(crate) const fn out(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seq_q, self.value_dim]
    }

    /// Query heads per key/value head.
    pub(crate) fn group(&self) -> usize {
        self.heads_q / self.heads_kv.max(1)
    }

    /// Multiply-adds of a forward pass without a mask, about.
    pub(crate) fn work(&self) -> usize {
        let dims = self.head_dim.saturating_add(self.value_dim).saturating_add(8);
        self.scores().into_iter().fold(dims, usize::saturating_mul)
    }
}

/// A validated call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'p> {
    pub(crate) dims: Dims,
    pub(crate) part: GlobalOffset,
    pub(crate) scale: f64,
    pub(crate) level: Level,
    attention: &'p Attention<'p>,
}

impl Attention<'_> {
    /// Validate a call.
    pub(crate) fn plan<E: Storage>(&self, q: &ArrayView4<'_, E>, k: &ArrayView4<'_, E>, v: Option<&ArrayView4<'_, E>>) -> Result<Plan<'_>> {
        let dims = Dims::check(q.shape(), k.shape(), v.map(ArrayView4::shape))?;
        self.plan_part::<E::Real>(dims, GlobalOffset { batch: 0, query: 0, key: 0, whole: dims.scores() })
    }

    /// Validate a call for tensors of these sizes that are a part of a larger whole.
    pub(crate) fn plan_part<T: Real>(&self, dims: Dims, part: GlobalOffset) -> Result<Plan<'_>> {
        let whole = part.whole;
        self.mask.validate(whole, &(part.batch..part.batch + dims.batch))?;
        self.biases.iter().try_for_each(|bias| bias.validate(whole))?;
        let number = |name, value: f64, ok: bool, requirement| if ok { Ok(()) } else { Err(Error::Number { name, value, requirement }) };
        let scale = self.scale_of(dims.head_dim);
        number("scale", scale, T::from_f64(scale).is_finite(), "finite, in the type that the arithmetic is done in")?;
        if let Some(cap) = self.softcap {
            // So that it and its inverse are elements of every type.
            number("softcap", cap, (1e-30..=1e30).contains(&cap), "from 1e-30 to 1e30")?;
        }
        if let Some(sink) = &self.sink {
            check_length("sink", sink.len(), dims.heads_q, "one logit per query head")?;
            for &x in sink.iter() {
                let ok = x == f64::NEG_INFINITY || T::from_f64(x).is_finite();
                number("a sink logit", x, ok, "finite in the type that the arithmetic is done in, or minus infinity")?;
            }
        }
        if let Some(Dropout { probability: p, .. }) = self.dropout {
            number("dropout", p, (0.0..1.0).contains(&p), "at least 0 and below 1")?;
        }
        if self.top_k == Some(0) {
            return Err(Error::Zero { name: "top_k" });
        }
        match self.threads {
            Some(0) => return Err(Error::Zero { name: "threads" }),
            Some(threads) if threads > MAX_THREADS => {
                return Err(Error::Threads { threads, reason: format!("at most {MAX_THREADS} are allowed") });
            }
            _ => {}
        }
        self.check_offsets(whole[0])?;
        let level = self.chosen_level()?;
        Ok(Plan { dims, part, scale, level, attention: self })
    }

    /// The scale for vectors of `head_dim` elements.
    pub fn scale_of(&self, head_dim: usize) -> f64 {
        match self.scale {
            Scale::InvSqrtDim => 1.0 / (head_dim.max(1) as f64).sqrt(),
            Scale::Off => 1.0,
            Scale::By(x) => x,
        }
    }

    /// Whether the gradient on the scale is wanted: see [`Attention::scale_gradient`].
    pub const fn has_scale_gradient(&self) -> bool {
        self.scale_gradient
    }

    fn check_offsets(&self, batch: usize) -> Result<()> {
        for offset in &self.offsets {
            if let Offset::PerBatch(offsets) = offset {
                check_length("q_offset", offsets.len(), batch, "one per batch entry")?;
            }
            if *offset != self.offsets[0] {
                let [first, second] = [&self.offsets[0], offset].map(|o| format!("{o:?}"));
                return Err(Error::Conflict { option: "q_offset", first, second });
            }
        }
        Ok(())
    }

    /// The level that calls run on.
    pub(crate) fn chosen_level(&self) -> Result<Level> {
        Ok(self.level.map_or_else(Level::preferred, Level::checked)?)
    }
}

impl<'p> Plan<'p> {
    pub(crate) fn mask(&self) -> &'p Mask<'p> {
        &self.attention.mask
    }

    pub(crate) fn biases(&self) -> &'p [Bias<'p>] {
        &self.attention.biases
    }

    pub(crate) fn softcap(&self) -> Option<f64> {
        self.attention.softcap
    }

    pub(crate) fn top_k(&self) -> Option<usize> {
        // As many as there are keys is all of them.
        self.attention.top_k.filter(|&k| k < self.part.whole[3])
    }

    /// Whether a bias or top-k may hide keys that the mask shows.
    pub(crate) fn has_hiding_bias_or_top_k(&self) -> bool {
        self.top_k().is_some() || self.biases().iter().any(Bias::may_hide)
    }

    /// Whether anything may hide a key from a row.
    pub(crate) fn may_hide(&self) -> bool {
        !self.mask().is_everything() || self.has_hiding_bias_or_top_k()
    }

    /// The biases whose gradients are computed.
    pub(crate) fn biases_with_gradient(&self) -> &'p [Bias<'p>] {
        if self.attention.without_bias_gradient { &[] } else { self.biases() }
    }

    pub(crate) fn scale_gradient(&self) -> bool {
        self.attention.scale_gradient
    }

    pub(crate) fn has_sink(&self) -> bool {
        self.attention.sink.is_some()
    }

    pub(crate) fn sink(&self, head: usize) -> Option<f64> {
        self.attention.sink.as_ref().map(|s| s[head])
    }

    pub(crate) fn dropout(&self) -> Option<Dropout> {
        // A probability of zero drops nothing, and multiplies with one.
        self.attention.dropout.filter(|d| d.probability > 0.0)
    }

    pub(crate) fn threads(&self) -> usize {
        self.attention.threads.unwrap_or_else(rayon::current_num_threads)
    }

    /// A batch entry of the whole and a query head.
    pub(crate) fn position(&self, batch: usize, head: usize) -> HeadPosition {
        let q_offset = match self.attention.offsets.first() {
            None => 0,
            Some(Offset::Same(n)) => *n,
            Some(Offset::PerBatch(n)) => n[batch],
            Some(Offset::End) => {
                let [_, _, queries, keys] = self.part.whole;
                let exist = self.attention.key_lengths.iter().map(|lengths| lengths[batch]).min().unwrap_or(keys);
                exist as i64 - queries as i64
            }
        };
        HeadPosition { batch, head, q_offset }
    }

    /// Run tasks, in parallel where that pays.
    pub(crate) fn for_tasks<T: Send, R: Send>(&self, tasks: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Result<Vec<R>> {
        let flag = self.attention.interrupt;
        let interrupted = || flag.is_some_and(|flag| flag.load(Ordering::Relaxed));
        let one = |task: T| if interrupted() { Err(Error::Interrupted) } else { Ok(f(task)) };
        let threads = if self.dims.work() < WORTH_A_THREAD { Some(1) } else { self.attention.threads };
        run_on(threads, tasks, one)
    }
}

/// Run tasks on `threads` threads; one thread is the calling one.
pub(crate) fn run_on<T: Send, R: Send>(threads: Option<usize>, tasks: Vec<T>, f: impl Fn(T) -> Result<R> + Send + Sync) -> Result<Vec<R>> {
    use rayon::prelude::*;
    if threads == Some(1) || tasks.len() <= 1 {
        return tasks.into_iter().map(f).collect();
    }
    let run = || tasks.into_par_iter().with_max_len(1).map(f).collect();
    pool::install(threads, run).map_err(|e| Error::Threads { threads: threads.unwrap_or(0), reason: e.to_string() })?
}
