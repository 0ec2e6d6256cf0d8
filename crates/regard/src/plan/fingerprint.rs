//! Options in words that are equal where the results are.

use super::options::{Attention, Dropout};
use crate::arrays::array_digest;
use crate::bias::{Bias, match_dense};
use crate::error::Result;
use regard_simd::{Level, Real, Storage};
use std::any::TypeId;

impl Attention<'_> {
    /// The options of a call with scores of this shape, separated by `"; "`: equal texts compute the same function of q, k and v. Callers
    /// that must agree, such as the ranks of a job, compare them.
    ///
    /// Arrays are given by shape and digest, and [custom](crate::Mask::custom) masks by a sample of their pairs. The number of threads and
    /// the interrupt flag change no result and are left out; so is the difference of AVX2, AVX-512 and NEON, which have the same bits.
    /// [`Level::Avx512Bf16`] and [`Level::Amx`] have their own where elements `E` are bf16.
    ///
    /// # Errors
    /// When the machine does not have the [level](Attention::level).
    pub fn fingerprint<E: Storage>(&self, scores: [usize; 4]) -> Result<String> {
        let level = match self.chosen_level()? {
            Level::Portable => "portable",
            Level::Avx512Bf16 if TypeId::of::<E>() == TypeId::of::<half::bf16>() => "pairs of bf16",
            Level::Amx if TypeId::of::<E>() == TypeId::of::<half::bf16>() => "tiles of bf16",
            _ => "vectors",
        };
        let mut words =
            vec![format!("level {level}"), format!("scale {:?}", self.scale), format!("mask {}", self.mask.fingerprint(scores))];
        words.extend(self.softcap.map(|cap| format!("softcap {cap:?}")));
        words.extend(self.biases.iter().map(|bias| format!("bias {}", bias_words(bias))));
        words.extend(self.without_bias_gradient.then(|| "no bias gradient".to_owned()));
        words.extend(self.scale_gradient.then(|| "scale gradient".to_owned()));
        words.extend(self.offsets.iter().map(|offset| format!("q_offset {offset:?}")));
        words.extend(self.top_k.map(|k| format!("top_k {k}")));
        words.extend(self.sink.as_ref().map(|sink| format!("sink {}", array_digest(&[sink.len()], sink.iter().map(|x| x.to_bits())))));
        words.extend(self.dropout.map(|Dropout { probability, seed }| format!("dropout {probability:?} with seed {seed}")));
        Ok(words.join("; "))
    }
}

fn bias_words(bias: &Bias<'_>) -> String {
    let kind = match bias {
        Bias::Dense(_) => "dense f32",
        Bias::Dense64(_) => "dense f64",
        Bias::DenseF16(_) => "dense f16",
        Bias::DenseBf16(_) => "dense bf16",
        Bias::Alibi(_) => "alibi",
        Bias::Relative(_) => "relative",
    };
    let digest = match_dense!(bias, b => array_digest(b.shape(), b.iter().map(|x| x.to_real().to_f64().to_bits())),
        Bias::Alibi(slopes) => array_digest(&[slopes.len()], slopes.iter().map(|x| x.to_bits())),
        Bias::Relative(table) => array_digest(table.shape(), table.iter().map(|x| u64::from(x.to_bits())))
    );
    format!("{kind} {digest}")
}
