//! Every pass of the library over one trial, its numbers side by side.

use super::trial::{Tensor, Trial};
use crate::common::oracle::{Number, Options, bias_gradients};
use ndarray::{Array, Dimension};
use regard::{Attention, Element, Stage, StatsOptions};

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
    <E as Element>::Real: Number,
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
        flat("scores", &a.scores(q, k, Stage::Bias).expect(fits)),
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
