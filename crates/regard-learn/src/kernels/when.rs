//! Conditions of calls: mistakes of kernels often need a mask, one query or a long sequence to be made.

use super::problem::Problem;

struct Condition {
    /// Words where it holds, and where it does not.
    words: [&'static str; 2],
    holds: fn(&Problem) -> bool,
}

macro_rules! conditions {
    ($($yes:literal, $no:literal, $holds:expr;)*) => {
        const CONDITIONS: &[Condition] = &[$(Condition { words: [$yes, $no], holds: $holds }),*];
    };
}

fn keys(p: &Problem, holds: fn(usize) -> bool) -> bool {
    (0..p.segments.len()).any(|s| holds(p.used(s)))
}

fn queries(p: &Problem, holds: fn(usize) -> bool) -> bool {
    p.segments.iter().any(|s| holds(s.n))
}

// The likelier first.
conditions! {
    "with the causal mask", "without the causal mask", |p| p.causal;
    "with a boolean mask", "without a boolean mask", |p| p.mask.is_some();
    "with a bias", "without a bias", |p| p.bias.is_some();
    "with a mask or bias", "without mask and bias", |p| p.mask.is_some() || p.bias.is_some();
    "with a scale argument", "with the default scale", |p| p.scale.is_some();
    "with a window", "without a window", |p| p.window.is_some();
    "with a softcap", "without a softcap", |p| p.softcap.is_some();
    "with ALiBi", "without ALiBi", |p| p.alibi.is_some();
    "with sinks", "without sinks", |p| p.sinks.is_some();
    "with key lengths", "without key lengths", |p| p.lengths.is_some();
    "with pages", "without pages", |p| p.paged;
    "with queries behind position 0", "with queries at position 0", |p| p.offset.is_some_and(|offset| offset > 0);
    "with one query", "with several queries", |p| p.segments.iter().all(|s| s.n <= 1);
    "with more keys than queries", "with at most as many keys as queries", |p| p.segments.iter().any(|s| s.m > s.n);
    "with more queries than keys", "with at least as many keys as queries", |p| p.segments.iter().any(|s| s.n > s.m);
    "with grouped heads", "with as many key heads as query heads", |p| p.heads[0] != p.heads[1];
    "with one head", "with several heads", |p| p.heads[0] == 1;
    "with one batch", "with several batches", |p| p.segments.len() == 1;
    "with another value dimension", "with equal head dimensions", |p| p.dims[0] != p.dims[1];
    "with a head dimension that is a power of 2", "with a head dimension that is no power of 2", |p| p.dims[0].is_power_of_two();
    "with a head dimension that is a multiple of 8", "with a head dimension that is no multiple of 8", |p| p.dims[0].is_multiple_of(8);
    "with a head dimension above 64", "with a head dimension of at most 64", |p| p.dims[0] > 64;
    "with a head dimension above 128", "with a head dimension of at most 128", |p| p.dims[0] > 128;
    "with more than 16 keys", "with at most 16 keys", |p| keys(p, |m| m > 16);
    "with more than 32 keys", "with at most 32 keys", |p| keys(p, |m| m > 32);
    "with more than 64 keys", "with at most 64 keys", |p| keys(p, |m| m > 64);
    "with more than 128 keys", "with at most 128 keys", |p| keys(p, |m| m > 128);
    "with more than 256 keys", "with at most 256 keys", |p| keys(p, |m| m > 256);
    "with more than 8 queries", "with at most 8 queries", |p| queries(p, |n| n > 8);
    "with more than 16 queries", "with at most 16 queries", |p| queries(p, |n| n > 16);
    "with more than 32 queries", "with at most 32 queries", |p| queries(p, |n| n > 32);
    "with more than 64 queries", "with at most 64 queries", |p| queries(p, |n| n > 64);
    "with more than 128 queries", "with at most 128 queries", |p| queries(p, |n| n > 128);
    "with a multiple of 16 keys", "with no multiple of 16 keys", |p| !keys(p, |m| !m.is_multiple_of(16));
    "with a multiple of 64 keys", "with no multiple of 64 keys", |p| !keys(p, |m| !m.is_multiple_of(64));
    "with a negative scale", "with a positive scale", |p| p.scale.is_some_and(|scale| scale < 0.0);
    "with a boolean mask for all heads", "with a boolean mask per head", |p| p.mask.as_ref().is_some_and(|mask| mask.shape[1] == 1);
    "with a mask for all queries", "with a mask per query",
        |p| p.mask.as_ref().or(p.bias.as_ref()).is_some_and(|mask| mask.shape[2] == 1);
    "with -inf in the bias", "without -inf in the bias", |p| p.bias.as_ref().is_some_and(|bias| bias.data.contains(&f64::NEG_INFINITY));
}

/// A condition that holds or does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Clause {
    condition: u8,
    holds: bool,
}

impl Clause {
    fn holds(self, p: &Problem) -> bool {
        CONDITIONS.get(usize::from(self.condition)).is_some_and(|one| (one.holds)(p) == self.holds)
    }

    fn words(self) -> &'static str {
        CONDITIONS.get(usize::from(self.condition)).map_or("", |one| one.words[usize::from(!self.holds)])
    }
}

/// Up to two conditions that must hold; always, where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct When([Option<Clause>; 2]);

impl When {
    /// The condition with these words: "with one query".
    pub fn named(words: &str) -> Option<Self> {
        let find = |no: usize| CONDITIONS.iter().position(|one| one.words[no] == words);
        let (condition, holds) = find(0).map(|at| (at, true)).or_else(|| find(1).map(|at| (at, false)))?;
        Some(Self([Some(Clause { condition: condition as u8, holds }), None]))
    }

    pub fn holds(&self, p: &Problem) -> bool {
        self.0.iter().flatten().all(|clause| clause.holds(p))
    }

    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.0.into_iter().flatten().map(Clause::words)
    }

    /// The simplest conditions that hold in all of some calls and in none of others.
    pub fn between(made: &[&Problem], not: &[&Problem]) -> Vec<Self> {
        let clauses = (0..CONDITIONS.len() as u8).flat_map(|condition| [true, false].map(|holds| Clause { condition, holds }));
        let open: Vec<Clause> = clauses.filter(|clause| made.iter().all(|p| clause.holds(p))).collect();
        let one: Vec<Self> = open.iter().filter(|a| !not.iter().any(|p| a.holds(p))).map(|a| Self([Some(*a), None])).collect();
        if !one.is_empty() {
            return one;
        }
        let mut two = Vec::new();
        for (at, a) in open.iter().enumerate() {
            let rest: Vec<&&Problem> = not.iter().filter(|p| a.holds(p)).collect();
            two.extend(open[at + 1..].iter().filter(|b| !rest.iter().any(|p| b.holds(p))).map(|b| Self([Some(*a), Some(*b)])));
        }
        two
    }
}
