//! Masks in words that are equal where the masks are.

use super::algebra::{HeadPosition, Mask, MaskRule, Rule};
use crate::arrays::{Digest, array_digest};

/// Queries and keys of a sample, each, and the most pairs of batch entry and head that are sampled.
const SAMPLE: usize = 32;

impl Mask<'_> {
    /// The expression; arrays by shape and digest, custom rules by a sample of their pairs.
    pub(crate) fn fingerprint(&self, scores: [usize; 4]) -> String {
        let joined = |masks: &[Self], sign: &str| {
            let all: Vec<_> = masks.iter().map(|mask| mask.fingerprint(scores)).collect();
            format!("({})", all.join(sign))
        };
        match &self.0 {
            Rule::Everything => "everything".to_owned(),
            Rule::Band { low, high } => format!("band({low:?}, {high:?})"),
            Rule::FirstKeys(count) => format!("first_keys({count})"),
            Rule::KeyLengths(lengths) => format!("key_lengths({})", array_digest(&[lengths.len()], lengths.iter().map(|&n| n as u64))),
            Rule::Documents { queries, keys } => {
                let [queries, keys] = [queries, keys].map(|ids| array_digest(ids.shape(), ids.iter().map(|&id| u64::from(id))));
                format!("documents({queries}, {keys})")
            }
            Rule::Dense(visible) => format!("dense({})", array_digest(visible.shape(), visible.iter().map(|&x| u64::from(x)))),
            Rule::Blocks { table, q_block, kv_block } => {
                format!("blocks({}, {q_block}, {kv_block})", array_digest(table.shape(), table.iter().map(|&x| u64::from(x))))
            }
            Rule::Custom(rule) => format!("custom({:016x})", sample(*rule, scores)),
            Rule::All(masks) => joined(masks, " & "),
            Rule::Any(masks) => joined(masks, " | "),
            Rule::Not(mask) => format!("!{}", mask.fingerprint(scores)),
        }
    }
}

fn sample(rule: &dyn MaskRule, [batch, heads, seq_q, seq_kv]: [usize; 4]) -> u64 {
    let spread = |count: usize| (0..count.min(SAMPLE)).map(move |i| i * count / count.min(SAMPLE));
    let mut digest = Digest::default();
    for place in spread(batch * heads) {
        let at = HeadPosition { batch: place / heads, head: place % heads, q_offset: 0 };
        for (query, key) in spread(seq_q).flat_map(|query| spread(seq_kv).map(move |key| (query, key))) {
            digest.add(u64::from(rule.visible(&at, query, key)));
        }
    }
    digest.finish()
}
