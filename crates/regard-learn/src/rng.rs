//! Random numbers of the cases: a function of seed and exercise, the same everywhere.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each seed and name.
    pub fn new(seed: u64, name: &str) -> Self {
        let mixed =
            name.bytes().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17));
        let mut rng = Self(mixed);
        rng.next();
        rng
    }

    /// 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless stream needs no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to 1, without 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number from `low` to `high`, both included.
    pub fn whole(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    /// A size from `low` to `high`, both included.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        self.whole(low as i64, high as i64) as usize
    }

    /// True with this probability.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }

    /// A standard normal number, rounded to f32.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }

    /// `n` standard normal samples.
    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// `n` integers within `-bound..=bound`, times `unit`: with a power of two as unit, sums of products are exact in f32 in any
    /// order.
    pub fn wholes(&mut self, count: usize, bound: i64, unit: f32) -> Vec<f32> {
        (0..count).map(|_| self.whole(-bound, bound) as f32 * unit).collect()
    }
}
