//! What the poison may change and what it must: by who sees it, and by the judge's answer to the poisoned call.

use super::passes::STATS;
use super::trial::{Operand, Trial};
use crate::common::oracle::{self, Answer, BackwardAnswer, MinusInfinity, Number, RowStatistics, Shape};
use ndarray::{Array3, Array4};

/// What is asked of one number of a poisoned call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Expected {
    /// It does not see the poison: the bits of the clean call.
    SameBits,
    /// NaN or infinite.
    NotFinite,
    Nan,
    /// It sees the poison, which leaves it a number: this one, about.
    Near(f64),
    /// A key that the row sees: the statistics of a spoiled row do not say that it is empty.
    VisibleKey([usize; 3]),
    /// Either is allowed.
    Free,
}

/// All that the judge says about a call.
struct Verdict {
    answer: Answer,
    gradients: BackwardAnswer,
    /// Of every row whose scores see the poison.
    statistics: Vec<Option<RowStatistics>>,
}

/// The judge's answers, clean and poisoned.
pub struct Judgement {
    pub dims: Shape,
    cells: (usize, usize),
    clean: Answer,
    /// The poisoned call. Where a score is minus infinity: once with such pairs visible, once with them hidden.
    verdicts: Vec<Verdict>,
    /// The poison may change which keys top-k takes: what such a row becomes is not promised.
    unpromised: bool,
    /// Rows whose scores see the poison.
    scored: Array3<bool>,
    /// Rows whose result sees it.
    valued: Array3<bool>,
    /// Rows whose gradients see it.
    differentiated: Array3<bool>,
    /// Rows of d_out that hold it.
    d_out: Array3<bool>,
    /// Pairs whose own score sees it.
    pairs: Array4<bool>,
    /// Pairs whose own product does.
    products: Array4<bool>,
}

/// Rows of `x` that differ from those of `y` in any bit.
fn changed(x: &Array4<f64>, y: &Array4<f64>) -> Array3<bool> {
    let (b, h, n, d) = x.dim();
    Array3::from_shape_fn((b, h, n), |(b, h, i)| (0..d).any(|e| x[[b, h, i, e]].to_bits() != y[[b, h, i, e]].to_bits()))
}

impl Judgement {
    pub fn new<E: Number>(trial: &Trial<E>) -> Self {
        let dims = trial.dims;
        let clean = [0, 1, 2, 3].map(|n| oracle::widened(trial.clean[n].view()));
        let bad = [0, 1, 2, 3].map(|n| oracle::widened(trial.bad[n].view()));
        let answer = |meaning| {
            let answer = oracle::attention_with(&trial.options, meaning, &bad[0], &bad[1], &bad[2]);
            let gradients = oracle::backward(&trial.options, &answer, &bad[0], &bad[1], &bad[2], &bad[3]);
            Verdict { answer, gradients, statistics: Vec::new() }
        };
        let strict = answer(MinusInfinity::Visible);
        let alike = !strict.answer.candidate.iter().zip(&strict.answer.scores).any(|(&seen, &score)| seen && score == f64::NEG_INFINITY);
        let mut verdicts = if alike { vec![strict] } else { vec![strict, answer(MinusInfinity::Hidden)] };
        let before = oracle::attention(&trial.clean_options, &clean[0], &clean[1], &clean[2]);
        let [q, k, v, d_out] = [0, 1, 2, 3].map(|n| changed(&clean[n], &bad[n]));
        let same = |x: f64, y: f64| x.to_bits() == y.to_bits();
        let shape = dims.scores();
        let products = Array4::from_shape_fn(shape, |(b, h, i, j)| q[[b, h, i]] || k[[b, dims.kv_head(h), j]]);
        let candidate = |at: [usize; 4]| before.candidate[at] || verdicts[0].answer.candidate[at];
        let biased = |at: [usize; 4]| {
            let pair = before.pair(at);
            let both = trial.clean_options.biases.iter().zip(&trial.options.biases);
            both.into_iter().any(|(x, y)| !same(x.at(&pair), y.at(&pair)))
        };
        let pairs = Array4::from_shape_fn(shape, |(b, h, i, j)| {
            let at = [b, h, i, j];
            candidate(at) && (products[at] || (trial.poisoned == Operand::Bias && biased(at)))
        });
        let rows = |any: &dyn Fn([usize; 4]) -> bool| {
            Array3::from_shape_fn([shape[0], shape[1], shape[2]], |(b, h, i)| (0..shape[3]).any(|j| any([b, h, i, j])))
        };
        let scored = rows(&|at| pairs[at]);
        let valued = rows(&|at| scored[[at[0], at[1], at[2]]] || (before.visible[at] && v[[at[0], dims.kv_head(at[1]), at[3]]]));
        let differentiated = rows(&|at| valued[[at[0], at[1], at[2]]] || (before.visible[at] && d_out[[at[0], at[1], at[2]]]));
        for verdict in &mut verdicts {
            let statistics = |row| oracle::row_statistics(&verdict.answer, row, STATS.local_window);
            verdict.statistics = scored.indexed_iter().map(|((b, h, i), seen)| seen.then(|| statistics([b, h, i]))).collect();
        }
        let unpromised = trial.options.top_k.is_some() && scored.iter().any(|&row| row);
        Self { dims, cells: trial.cells, clean: before, verdicts, unpromised, scored, valued, differentiated, d_out, pairs, products }
    }

    /// Of a number that sees the poison.
    fn judged(&self, of: impl Fn(&Verdict) -> f64) -> Expected {
        let (first, last) = (of(&self.verdicts[0]), self.verdicts.get(1).map(of));
        self.either(first, last.unwrap_or(first))
    }

    /// The same, NaN and nothing else.
    fn judged_nan(&self, of: impl Fn(&Verdict) -> f64) -> Expected {
        match self.judged(of) {
            Expected::NotFinite => Expected::Nan,
            other => other,
        }
    }

    /// Of a number that two answers are allowed for.
    fn either(&self, x: f64, y: f64) -> Expected {
        match () {
            () if self.unpromised => Expected::Free,
            () if !x.is_finite() && !y.is_finite() => Expected::NotFinite,
            () if (x - y).abs() <= 1e-9 * (1.0 + x.abs()) => Expected::Near(x),
            () => Expected::Free,
        }
    }

    /// Does the row see the key, before or after?
    fn seen(&self, at: [usize; 4]) -> bool {
        let of = |answer: &Answer| if self.unpromised { answer.candidate[at] } else { answer.visible[at] };
        of(&self.clean) || of(&self.verdicts[0].answer)
    }

    /// Keys (of key/value heads) that one of these rows sees.
    fn keys_of(&self, rows: &Array3<bool>) -> Array3<bool> {
        let Shape { batch, heads_kv, seq_kv, .. } = self.dims;
        let mut keys = Array3::from_elem([batch, heads_kv, seq_kv], false);
        for ((b, h, i), _) in rows.indexed_iter().filter(|(_, marked)| **marked) {
            for j in (0..seq_kv).filter(|&j| self.seen([b, h, i, j])) {
                keys[[b, self.dims.kv_head(h), j]] = true;
            }
        }
        keys
    }

    fn spoiled(&self, [b, h, i]: [usize; 3]) -> bool {
        self.verdicts.iter().all(|verdict| verdict.answer.lse[[b, h, i]].is_nan())
    }

    /// What is asked of every number of a result.
    pub fn expected(&self, name: &str) -> Vec<Expected> {
        let [b, h, n, m] = self.dims.scores();
        let (kv, d, e) = (self.dims.heads_kv, self.dims.head_dim, self.dims.value_dim);
        let matrix = |marked: &dyn Fn([usize; 4]) -> bool, of: &dyn Fn(&Answer, [usize; 4]) -> f64| {
            each([b, h, n, m], |at| if marked(at) { self.judged(|verdict| of(&verdict.answer, at)) } else { Expected::SameBits })
        };
        let row = |at: [usize; 4]| [at[0], at[1], at[2]];
        match name {
            "out" => each([b, h, n, e], |at| self.if_marked(&self.valued, row(at), |verdict| verdict.answer.out[at])),
            "lse" => each([b, h, n, 1], |at| self.if_marked(&self.scored, row(at), |verdict| verdict.answer.lse[row(at)])),
            "row_max" | "row_sum" => each([b, h, n, 1], |at| if self.scored[row(at)] { Expected::Free } else { Expected::SameBits }),
            "raw scores" => matrix(&|at| self.products[at], &|answer, at| answer.raw[at]),
            "capped scores" => matrix(&|at| self.products[at], &|answer, at| answer.capped[at]),
            "scores" => {
                matrix(&|at| self.pairs[at] || (self.unpromised && self.scored[row(at)] && self.seen(at)), &|answer, at| answer.scores[at])
            }
            "weights" => matrix(&|at| self.scored[row(at)] && self.seen(at), &|answer, at| answer.applied[at]),
            "dq" => each([b, h, n, d], |at| self.if_marked(&self.differentiated, row(at), |verdict| verdict.gradients.dq[at])),
            "dk" => {
                let keys = self.keys_of(&self.differentiated);
                each([b, kv, m, d], |at| self.if_marked(&keys, row(at), |verdict| verdict.gradients.dk[at]))
            }
            "dv" => {
                let keys = [self.keys_of(&self.scored), self.keys_of(&self.d_out)];
                let keys = Array3::from_shape_fn(keys[0].raw_dim(), |at| keys[0][at] || keys[1][at]);
                each([b, kv, m, e], |at| self.if_marked(&keys, row(at), |verdict| verdict.gradients.dv[at]))
            }
            "d_sink" => (0..h)
                .map(|h| {
                    let marked = (0..b).any(|b| (0..n).any(|i| self.differentiated[[b, h, i]]));
                    if marked { self.judged(|verdict| verdict.gradients.d_sink[h]) } else { Expected::SameBits }
                })
                .collect(),
            "d_scores rows" => each([b, h, n, 1], |at| {
                self.if_marked(&self.differentiated, row(at), |verdict| {
                    (0..m).map(|j| verdict.gradients.d_scores[[at[0], at[1], at[2], j]].powi(2)).sum::<f64>().sqrt()
                })
            }),
            "heat map mean" => self.cells_of(|answer| oracle::heat_map(answer, self.cells.0, self.cells.1).0),
            "heat map max" => self.cells_of(|answer| oracle::heat_map(answer, self.cells.0, self.cells.1).1),
            "column sums" => {
                let sums: Vec<_> = self.verdicts.iter().map(|verdict| oracle::column_sums(&verdict.answer)).collect();
                each([b, h, m, 1], |[b, h, j, _]| {
                    let marked = (0..n).any(|i| self.scored[[b, h, i]] && self.seen([b, h, i, j]));
                    let either = || self.either(sums[0][[b, h, j]], sums[sums.len() - 1][[b, h, j]]);
                    if marked { either() } else { Expected::SameBits }
                })
            }
            "centred cosine" => self.heads_of(|similarity| similarity.centred_cosine),
            "jensen_shannon" => self.heads_of(|similarity| similarity.jensen_shannon),
            _ => self.statistic(name),
        }
    }

    /// The gradient of the dense bias.
    pub fn expected_d_bias(&self, options: &oracle::Options) -> Vec<Expected> {
        let Some(bias) = options.biases.first() else { return Vec::new() };
        let mut marked = vec![false; bias.len()];
        for (at, _) in self.products.indexed_iter() {
            let at = [at.0, at.1, at.2, at.3];
            if self.differentiated[[at[0], at[1], at[2]]] && self.seen(at) {
                marked[bias.place(&self.clean.pair(at)).0] = true;
            }
        }
        let judged = |place: usize| self.judged(|verdict| verdict.gradients.d_biases[0][place]);
        marked.into_iter().enumerate().map(|(place, marked)| if marked { judged(place) } else { Expected::SameBits }).collect()
    }

    fn if_marked(&self, rows: &Array3<bool>, row: [usize; 3], of: impl Fn(&Verdict) -> f64) -> Expected {
        if rows[row] { self.judged(of) } else { Expected::SameBits }
    }

    fn cells_of(&self, of: impl Fn(&Answer) -> Array4<f64>) -> Vec<Expected> {
        let maps: Vec<_> = self.verdicts.iter().map(|verdict| of(&verdict.answer)).collect();
        let last = &maps[maps.len() - 1];
        let [_, _, n, m] = self.dims.scores();
        let (_, _, rows, cols) = maps[0].dim();
        let mut marked = Array4::from_elem(maps[0].raw_dim(), false);
        for ((b, h, i, j), _) in self.products.indexed_iter() {
            if self.scored[[b, h, i]] && self.seen([b, h, i, j]) {
                marked[[b, h, i * rows / n, j * cols / m]] = true;
            }
        }
        let shape = [maps[0].dim().0, maps[0].dim().1, rows, cols];
        each(shape, |at| if marked[at] { self.either(maps[0][at], last[at]) } else { Expected::SameBits })
    }

    fn heads_of(&self, of: impl Fn(oracle::Similarity) -> f64) -> Vec<Expected> {
        let [b, h, n, _] = self.dims.scores();
        let marked = |b: usize, h: usize| (0..n).any(|i| self.scored[[b, h, i]]);
        each([b, h, h, 1], |[b, f, g, _]| match () {
            () if !marked(b, f) && !marked(b, g) => Expected::SameBits,
            // Whether a spoiled head is like itself is not asked.
            () if f == g => Expected::Free,
            () => {
                match self.judged(|verdict| of(oracle::similarity(&verdict.answer, b, f, g))) {
                    Expected::NotFinite => Expected::Nan,
                    // Where a map hardly varies, the correlation is anything.
                    Expected::Near(_) => Expected::Free,
                    other => other,
                }
            }
        })
    }

    fn statistic(&self, name: &str) -> Vec<Expected> {
        let [b, h, n, _] = self.dims.scores();
        let count = if name.starts_with("top_") { STATS.top_keys } else { 1 };
        each([b, h, n, count], |[b, h, i, _]| {
            let row = [b, h, i];
            if !self.scored[row] {
                return Expected::SameBits;
            }
            let of = |pick: &dyn Fn(&RowStatistics) -> f64| {
                self.judged_nan(|verdict| verdict.statistics[(b * self.dims.heads_q + h) * n + i].as_ref().map_or(f64::NAN, pick))
            };
            // A mass of keys that the row does not see: nothing, or not a number like the rest of the row.
            let mass = |pick: &dyn Fn(&RowStatistics) -> f64| match of(pick) {
                Expected::Near(_) if self.spoiled(row) => Expected::Free,
                other => other,
            };
            match name {
                "entropy" => of(&|s| s.entropy),
                "max_weight" => of(&|s| s.max_weight),
                "sum_of_squares" => of(&|s| s.sum_of_squares),
                "mean_distance" => of(&|s| s.mean_distance),
                "diagonal_mass" => mass(&|s| s.diagonal_mass),
                "previous_token_mass" => mass(&|s| s.previous_token_mass),
                "first_token_mass" => mass(&|s| s.first_token_mass),
                "local_mass" => mass(&|s| s.local_mass),
                "argmax" if self.spoiled(row) && !self.unpromised => Expected::VisibleKey(row),
                "argmax" | "top_keys" | "top_weights" => Expected::Free,
                other => panic!("unknown case {other}"),
            }
        })
    }

    /// Does a row see this key, in the poisoned call?
    pub fn sees(&self, [b, h, i]: [usize; 3], key: f64) -> bool {
        key >= 0.0 && self.verdicts[0].answer.visible[[b, h, i, key as usize]]
    }
}

fn each(shape: [usize; 4], of: impl Fn([usize; 4]) -> Expected) -> Vec<Expected> {
    ndarray::indices(shape).into_iter().map(|(b, h, i, j)| of([b, h, i, j])).collect()
}
