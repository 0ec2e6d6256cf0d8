//! The numbers that `torch.manual_seed(seed)` and `torch.randn(...)` give on a CPU in float32, without PyTorch.
//!
//! ```text
//! MT19937, seeded by its plain 32-bit initialiser; x = (low 24 bits of an output) / 2^24 for each number
//! per 16 numbers, for j in 0..8:  r = sqrt(-2 ln(1 - x[j])),  a = 2 pi x[j + 8]
//!                                 out[j] = r cos a,  out[j + 8] = r sin a
//! ```
//!
//! Where the length is not a multiple of 16, the last 16 numbers are made anew from 16 fresh ones. Fewer than 16 numbers take another
//! path in PyTorch, which is not reproduced. PyTorch's vector logarithm and cosine may differ in the last bit from the ones here.

use crate::error::{Result, require};

const WORDS: usize = 624;
const MIDDLE: usize = 397;

/// The generator after `torch.manual_seed`.
pub struct TorchRandn {
    state: [u32; WORDS],
    next: usize,
}

impl TorchRandn {
    /// `torch.manual_seed(seed)`; only the low 32 bits count.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        state[0] = seed as u32;
        for i in 1..WORDS {
            let last = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: WORDS }
    }

    fn refill(&mut self) {
        for i in 0..WORDS {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + MIDDLE) % WORDS] ^ (joined >> 1) ^ twist;
        }
        self.next = 0;
    }

    fn output(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn uniform(&mut self) -> f32 {
        (self.output() & 0x00ff_ffff) as f32 * 2f32.powi(-24)
    }

    /// `torch.randn(count)`.
    ///
    /// # Errors
    /// For fewer than 16 numbers.
    pub fn randn(&mut self, count: usize) -> Result<Vec<f32>> {
        require(count >= 16, "the number of values of a PyTorch draw", count, "at least 16")?;
        let mut x: Vec<f32> = (0..count).map(|_| self.uniform()).collect();
        x.chunks_exact_mut(16).for_each(box_muller);
        if !count.is_multiple_of(16) {
            let last = &mut x[count - 16..];
            last.fill_with(|| self.uniform());
            box_muller(last);
        }
        Ok(x)
    }
}

fn box_muller(block: &mut [f32]) {
    let (radii, angles) = block.split_at_mut(8);
    for (r, a) in radii.iter_mut().zip(angles) {
        let radius = (-2.0 * (1.0 - *r).ln()).sqrt();
        let angle = 2.0 * std::f32::consts::PI * *a;
        (*r, *a) = (radius * angle.cos(), radius * angle.sin());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed, length, the first three and last three numbers of the first draw, the first two of the second: from PyTorch 2.15.
    const KNOWN: [(u64, usize, [f32; 8]); 5] = [
        (0, 16, [-1.1258398, -1.1523602, -0.25057858, 1.2376579, 1.1167772, -0.24727815, -1.3526537, -1.6959312]),
        (298, 2048, [0.026620697, -0.63262326, 0.7698689, -0.010678765, -1.0470284, 0.7141717, 1.4023434, 2.5289133]),
        (7, 35, [-0.8201345, 0.39563116, 0.8989085, -1.6370213, 0.15771191, 0.39574093, -0.383891, -2.9661698]),
        (46, 32, [0.8818059, -0.22369535, 1.101037, -0.5101263, -1.2683733, -0.09123595, 0.3301144, -0.5674828]),
        (123_456, 99, [-1.1218369, -1.8445433, 1.0257993, -0.727_9, 0.76282316, -0.7155785, 1.5664103, -1.2372317]),
    ];

    #[test]
    fn numbers_are_those_of_pytorch() {
        for (seed, count, known) in KNOWN {
            let mut torch = TorchRandn::new(seed);
            let (first, second) = (torch.randn(count).unwrap(), torch.randn(count).unwrap());
            let got = first[..3].iter().chain(&first[count - 3..]).chain(&second[..2]);
            for (got, known) in got.zip(known) {
                assert!((got - known).abs() < 1e-6, "seed {seed}: {got} instead of {known}");
            }
        }
    }

    #[test]
    fn fewer_than_sixteen_numbers_are_refused() {
        assert!(TorchRandn::new(0).randn(15).is_err());
    }
}
