//! Random words as a pure function of a key and a counter: Philox 4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", 2011: the fewest rounds that pass their battery of tests).

const ROUNDS: usize = 7;
const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The half of a lane that holds a word.
pub const LOW: u64 = 0xffff_ffff;

/// Words of a counter, and of what becomes of it.
pub const WORDS: usize = 4;

/// N counters side by side. Each word lies in the lower half of a lane, where the CPU multiplies it in one instruction; what the upper half holds
/// has no meaning, before and after.
#[inline(always)]
pub fn philox<const N: usize>(counter: &mut [[u64; N]; WORDS], key: u64) {
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = counter;
        for i in 0..N {
            let first = (c0[i] & LOW) * MULTIPLIERS[0];
            let second = (c2[i] & LOW) * MULTIPLIERS[1];
            c0[i] = (second >> 32) ^ c1[i] ^ u64::from(key[0]);
            c1[i] = second;
            c2[i] = (first >> 32) ^ c3[i] ^ u64::from(key[1]);
            c3[i] = first;
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors of Philox publish for 4x32 with 7 rounds.
    #[test]
    fn philox_gives_the_published_words() {
        let run = |counter: [u32; 4], key: [u32; 2]| {
            // The upper halves are not looked at.
            let mut c = counter.map(|x| [u64::from(x) | 0xdead_beef << 32]);
            philox(&mut c, u64::from(key[0]) | u64::from(key[1]) << 32);
            c.map(|[x]| x as u32)
        };
        assert_eq!(run([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(run([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(
            run([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
        );
    }
}
