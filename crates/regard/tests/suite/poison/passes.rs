//! Every pass of the library over one trial, its numbers side by side.

use super::trial::{Tensor, Trial};
use crate::common::oracle::{self, MinusInfinity, Number, Options, RowStatistics, bias_gradients, widened};
use ndarray::{Array, Dimension};
use regard::{Attention, Stage, StatsOptions};

/// What statistics are asked for.
pub const STATS: StatsOptions = StatsOptions { local_window: 4, top_keys: 3 };

/// The numbers of one result, widened, in the order of memory.
pub type Numbers = (&'static str, Vec<f64>);

fn flat<E: Number, D: Dimension>(name: &'static str, x: &Array<E, D>) -> Numbers {
    (name, x.iter().map(|x| x.wide()).collect())
}

fn keys<D: Dimension>(name: &'static str, x: &Array<i64, D>) -> Numbers {
    (name, x.iter().map(|&key| key as f64).collect())
}

/// Everything that the library says about a call.
pub fn passes<E: Number>(trial: &Trial<E>, options: &Options, operands: &[Tensor<E>; 4]) -> Vec<Numbers>
where
    <E as regard::Storage>::Real: Number,
{
    let a: Attention<'_> = options.attention().level(trial.level);
    let [q, k, v, d_out] = [0, 1, 2, 3].map(|n| operands[n].view());
    let fits = "every trial fits";
    let forward = a.forward(q, k, v).expect(fits);
    let saved = a.forward_saved(q, k, v).expect(fits);
    let (again, stats) = a.forward_with_stats(q, k, v, STATS).expect(fits);
    let (gradients, gradient_stats) = a.backward_with_stats(q, k, v, &saved, d_out).expect(fits);
    let mut all = vec![
        flat("out", &forward.out),
        flat("out", &saved.out),
        flat("out", &again.out),
        flat("lse", &forward.lse),
        flat("lse", &saved.lse()),
        flat("lse", &again.lse),
        flat("row_max", &saved.row_max),
        flat("row_sum", &saved.row_sum),
        flat("entropy", &stats.entropy),
        flat("max_weight", &stats.max_weight),
        keys("argmax", &stats.argmax),
        flat("sum_of_squares", &stats.sum_of_squares),
        flat("diagonal_mass", &stats.diagonal_mass),
        flat("previous_token_mass", &stats.previous_token_mass),
        flat("first_token_mass", &stats.first_token_mass),
        flat("local_mass", &stats.local_mass),
        flat("mean_distance", &stats.mean_distance),
        keys("top_keys", &stats.top_keys),
        flat("top_weights", &stats.top_weights),
        flat("raw scores", &a.scores(q, k, Stage::Raw).expect(fits)),
        flat("capped scores", &a.scores(q, k, Stage::Softcap).expect(fits)),
        flat("scores", &a.scores(q, k, Stage::Masked).expect(fits)),
        flat("weights", &a.weights(q, k).expect(fits)),
        flat("dq", &gradients.dq),
        flat("dk", &gradients.dk),
        flat("dv", &gradients.dv),
        ("d_sink", gradients.d_sink.clone().unwrap_or_default()),
        ("d_bias", bias_gradients(&gradients).concat()),
        flat("d_scores rows", &gradient_stats.d_scores_rows),
    ];
    // What dropout is to maps is another question.
    if options.dropout.is_none() {
        let map = a.heat_map(q, k, trial.cells.0, trial.cells.1).expect(fits);
        let alike = a.head_similarity(q, k).expect(fits);
        all.extend([
            flat("heat map mean", &map.mean),
            flat("heat map max", &map.max),
            flat("column sums", &a.column_sums(q, k).expect(fits)),
            flat("centred cosine", &alike.centred_cosine),
            flat("jensen_shannon", &alike.jensen_shannon),
        ]);
    }
    all
}

/// The same by the judge, in f64: what the expectations are tried on.
pub fn textbook<E: Number>(trial: &Trial<E>, options: &Options, operands: &[Tensor<E>; 4]) -> Vec<Numbers> {
    let [q, k, v, d_out] = [0, 1, 2, 3].map(|n| widened(operands[n].view()));
    let answer = oracle::attention_with(options, MinusInfinity::Visible, &q, &k, &v);
    let gradients = oracle::backward(options, &answer, &q, &k, &v, &d_out);
    let dims = answer.dims;
    let rows: Vec<[usize; 3]> = ndarray::indices([dims.batch, dims.heads_q, dims.seq_q]).into_iter().map(|(b, h, i)| [b, h, i]).collect();
    let statistics: Vec<RowStatistics> = rows.iter().map(|&row| oracle::row_statistics(&answer, row, STATS.local_window)).collect();
    let of = |name: &'static str, pick: fn(&RowStatistics) -> f64| (name, statistics.iter().map(pick).collect());
    let argmax = |row: &[usize; 3]| oracle::heaviest_first(&answer, *row).first().map_or(-1.0, |&key| key as f64);
    let norm = |&[b, h, i]: &[usize; 3]| (0..dims.seq_kv).map(|j| gradients.d_scores[[b, h, i, j]].powi(2)).sum::<f64>().sqrt();
    let mut all = vec![
        flat("out", &answer.out),
        flat("lse", &answer.lse),
        flat("row_max", &answer.row_max),
        flat("row_sum", &answer.row_sum),
        of("entropy", |s| s.entropy),
        of("max_weight", |s| s.max_weight),
        ("argmax", rows.iter().map(argmax).collect()),
        of("sum_of_squares", |s| s.sum_of_squares),
        of("diagonal_mass", |s| s.diagonal_mass),
        of("previous_token_mass", |s| s.previous_token_mass),
        of("first_token_mass", |s| s.first_token_mass),
        of("local_mass", |s| s.local_mass),
        of("mean_distance", |s| s.mean_distance),
        flat("raw scores", &answer.raw),
        flat("capped scores", &answer.capped),
        flat("scores", &answer.scores),
        flat("weights", &answer.applied),
        flat("dq", &gradients.dq),
        flat("dk", &gradients.dk),
        flat("dv", &gradients.dv),
        ("d_sink", gradients.d_sink.clone()),
        ("d_bias", gradients.d_biases.concat()),
        ("d_scores rows", rows.iter().map(norm).collect()),
    ];
    if options.dropout.is_none() {
        let (mean, max) = oracle::heat_map(&answer, trial.cells.0, trial.cells.1);
        let heads = || ndarray::indices([dims.batch, dims.heads_q, dims.heads_q]).into_iter();
        let alike = |pick: fn(oracle::Similarity) -> f64| heads().map(|(b, f, g)| pick(oracle::similarity(&answer, b, f, g))).collect();
        all.extend([
            flat("heat map mean", &mean),
            flat("heat map max", &max),
            flat("column sums", &oracle::column_sums(&answer)),
            ("centred cosine", alike(|s| s.centred_cosine)),
            ("jensen_shannon", alike(|s| s.jensen_shannon)),
        ]);
    }
    all
}
