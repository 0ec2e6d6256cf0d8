//! Which calls are to be refused: every rule of the library's documentation, written again.

use super::mask::Mask;
use super::options::{Bias, Offset, Options};

fn broadcasts(shape: &[usize], scores: [usize; 4]) -> bool {
    shape.iter().zip(scores).all(|(&n, of)| n == 1 || n == of)
}

/// Why a call must be refused, if it must. `narrow` is for arithmetic in f32.
pub fn refusal(options: &Options, q: &[usize], k: &[usize], v: &[usize], narrow: bool) -> Option<&'static str> {
    let scores = [q[0], q[1], q[2], k[2]];
    let finite = |x: f64| x.is_finite() && (!narrow || (x as f32).is_finite());
    let rules = [
        (k[0] == q[0] && v[0] == q[0], "batches differ"),
        (k[3] == q[3], "head_dim differs"),
        (k[1] == v[1], "heads of k and v differ"),
        (k[2] == v[2], "lengths of k and v differ"),
        (q[1].is_multiple_of(k[1]), "heads cannot be shared out"),
        (options.scale.is_none_or(finite), "scale"),
        (options.softcap.is_none_or(|cap| (1e-30..=1e30).contains(&cap)), "softcap"),
        (options.top_k != Some(0), "top_k"),
        (options.threads != Some(0), "threads"),
        (options.dropout.is_none_or(|dropout| (0.0..1.0).contains(&dropout.probability)), "dropout"),
        (
            options
                .sink
                .as_ref()
                .is_none_or(|sink| sink.len() == q[1] && sink.iter().all(|&logit| logit == f64::NEG_INFINITY || finite(logit))),
            "sink",
        ),
        (!matches!(&options.offset, Offset::PerBatch(offsets) if offsets.len() != q[0]), "offsets"),
        (options.biases.iter().all(|bias| bias_fits(bias, scores)), "bias"),
        (mask_fits(&options.mask, scores), "mask"),
        (options.key_lengths.iter().all(|lengths| mask_fits(&Mask::KeyLengths(lengths.clone()), scores)), "key lengths"),
    ];
    rules.into_iter().find(|(holds, _)| !holds).map(|(_, why)| why)
}

fn bias_fits(bias: &Bias, scores: [usize; 4]) -> bool {
    match bias {
        Bias::Dense(x) => broadcasts(x.shape(), scores),
        Bias::Dense64(x) => broadcasts(x.shape(), scores),
        Bias::Alibi(slopes) => slopes.len() == scores[1] && slopes.iter().all(|x| x.is_finite()),
        Bias::Relative(table) => (table.nrows() == 1 || table.nrows() == scores[1]) && table.ncols() % 2 == 1,
    }
}

fn mask_fits(mask: &Mask, scores: [usize; 4]) -> bool {
    let [batch, heads, n, m] = scores;
    let mut fits = true;
    mask.each(&mut |leaf| {
        fits &= match leaf {
            Mask::KeyLengths(lengths) => lengths.len() == batch && lengths.iter().all(|&length| length <= m),
            Mask::Documents { queries, keys } => {
                let rows = |rows: usize| rows == 1 || rows == batch;
                rows(queries.nrows()) && rows(keys.nrows()) && queries.ncols() == n && keys.ncols() == m
            }
            Mask::Dense(table) => broadcasts(table.shape(), scores),
            Mask::Blocks { table, q_block, kv_block } => {
                *q_block > 0
                    && *kv_block > 0
                    && (table.dim().0 == 1 || table.dim().0 == heads)
                    && table.dim().1 == n.div_ceil(*q_block)
                    && table.dim().2 == m.div_ceil(*kv_block)
            }
            _ => true,
        };
    });
    fits
}
