//! The oracle's masks: one expression, evaluated pair by pair.

use ndarray::{Array2, Array3, Array4};
use regard::{HeadPosition, MaskRule, TileCoverage};
use std::ops::{BitAnd, BitOr, Not, Range};

/// A mask of the library's, and a rule of the judge's own for it.
#[derive(Debug, Clone)]
pub enum Mask {
    Everything,
    Causal,
    Reverse,
    StrictlyFuture,
    Window(Option<usize>, Option<usize>),
    FirstKeys(usize),
    KeyLengths(Vec<usize>),
    Documents {
        queries: Array2<u32>,
        keys: Array2<u32>,
    },
    Dense(Array4<bool>),
    Blocks {
        table: Array3<bool>,
        q_block: usize,
        kv_block: usize,
    },
    /// A rule of the user's: every third key, looking back from the query's position, and key 0.
    Dilated,
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Not(Box<Self>),
}

/// One query and one key, and where the query stands on the key axis.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub batch: usize,
    pub head: usize,
    pub query: usize,
    pub key: usize,
    pub position: i128,
}

impl Pair {
    /// How far the key is after the query.
    pub fn distance(&self) -> i128 {
        self.key as i128 - self.position
    }
}

/// An axis of length 1 serves all.
pub(super) fn broadcast(index: usize, len: usize) -> usize {
    if len == 1 { 0 } else { index }
}

impl Mask {
    /// May the query attend to the key?
    pub fn visible(&self, p: &Pair) -> bool {
        match self {
            Self::Everything => true,
            Self::Causal => p.distance() <= 0,
            Self::Reverse => p.distance() >= 0,
            Self::StrictlyFuture => p.distance() > 0,
            Self::Window(left, right) => {
                left.is_none_or(|left| -p.distance() <= left as i128) && right.is_none_or(|right| p.distance() <= right as i128)
            }
            Self::FirstKeys(count) => p.key < *count,
            Self::KeyLengths(lengths) => p.key < lengths[p.batch],
            Self::Documents { queries, keys } => {
                queries[[broadcast(p.batch, queries.nrows()), p.query]] == keys[[broadcast(p.batch, keys.nrows()), p.key]]
            }
            Self::Dense(table) => {
                let (b, h, n, m) = table.dim();
                table[[broadcast(p.batch, b), broadcast(p.head, h), broadcast(p.query, n), broadcast(p.key, m)]]
            }
            Self::Blocks { table, q_block, kv_block } => table[[broadcast(p.head, table.dim().0), p.query / q_block, p.key / kv_block]],
            Self::Dilated => p.key == 0 || (p.distance() <= 0 && p.distance() % 3 == 0),
            Self::And(a, b) => a.visible(p) && b.visible(p),
            Self::Or(a, b) => a.visible(p) || b.visible(p),
            Self::Not(a) => !a.visible(p),
        }
    }

    /// The same for the library.
    pub fn library(&self) -> regard::Mask<'_> {
        use regard::Mask as Theirs;
        match self {
            Self::Everything => Theirs::everything(),
            Self::Causal => Theirs::causal(),
            Self::Reverse => Theirs::reverse(),
            Self::StrictlyFuture => Theirs::strictly_future(),
            Self::Window(left, right) => Theirs::window(*left, *right),
            Self::FirstKeys(count) => Theirs::first_keys(*count),
            Self::KeyLengths(lengths) => Theirs::key_lengths(&lengths[..]),
            Self::Documents { queries, keys } => Theirs::documents(queries, keys),
            Self::Dense(table) => Theirs::dense(table),
            Self::Blocks { table, q_block, kv_block } => Theirs::blocks(table, *q_block, *kv_block),
            Self::Dilated => Theirs::custom(&Dilated),
            Self::And(a, b) => a.library() & b.library(),
            Self::Or(a, b) => a.library() | b.library(),
            Self::Not(a) => !a.library(),
        }
    }

    /// Visits the expression, leaves and all.
    pub fn each<'m>(&'m self, visit: &mut impl FnMut(&'m Self)) {
        visit(self);
        match self {
            Self::And(a, b) | Self::Or(a, b) => {
                a.each(visit);
                b.each(visit);
            }
            Self::Not(a) => a.each(visit),
            _ => {}
        }
    }
}

impl BitAnd for Mask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self::And(Box::new(self), Box::new(other))
    }
}

impl BitOr for Mask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self::Or(Box::new(self), Box::new(other))
    }
}

impl Not for Mask {
    type Output = Self;
    fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

/// [`Mask::Dilated`] as a user would write it, with answers about tiles that say less than they could.
struct Dilated;

impl MaskRule for Dilated {
    fn visible(&self, place: &HeadPosition, query: usize, key: usize) -> bool {
        let back = i128::from(place.q_offset) + query as i128 - key as i128;
        key == 0 || (back >= 0 && back % 3 == 0)
    }

    fn coverage(&self, place: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
        let last = i128::from(place.q_offset) + queries.end as i128 - 1;
        let none = keys.start > 0 && keys.start as i128 > last;
        if none { TileCoverage::Empty } else { TileCoverage::Partial }
    }

    fn key_range(&self, place: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        let end = (i128::from(place.q_offset) + queries.end as i128).clamp(1, keys.end.max(1) as i128) as usize;
        keys.start..keys.end.min(end)
    }
}

#[test]
fn masks_are_those_of_the_drawings() {
    // Four queries and six keys, a letter per pair.
    let draw = |mask: &Mask, offset: i128| -> Vec<String> {
        (0..4)
            .map(|query| {
                let seen = |key| mask.visible(&Pair { batch: 0, head: 0, query, key, position: offset + query as i128 });
                (0..6).map(|key| if seen(key) { '#' } else { '.' }).collect()
            })
            .collect()
    };
    assert_eq!(draw(&Mask::Causal, 0), ["#.....", "##....", "###...", "####.."]);
    assert_eq!(draw(&Mask::Causal, 2), ["###...", "####..", "#####.", "######"]);
    assert_eq!(draw(&Mask::Reverse, 2), ["..####", "...###", "....##", ".....#"]);
    assert_eq!(draw(&Mask::StrictlyFuture, 2), ["...###", "....##", ".....#", "......"]);
    assert_eq!(draw(&Mask::Window(Some(1), Some(1)), 0), ["##....", "###...", ".###..", "..###."]);
    assert_eq!(draw(&Mask::Window(Some(1), None), 1), ["######", ".#####", "..####", "...###"]);
    assert_eq!(draw(&(Mask::FirstKeys(2) | Mask::Window(Some(1), Some(0))), 0), ["##....", "##....", "###...", "####.."]);
    assert_eq!(draw(&!Mask::FirstKeys(4), 0), ["....##"; 4]);
    assert_eq!(draw(&(Mask::Causal & Mask::KeyLengths(vec![2])), 0), ["#.....", "##....", "##....", "##...."]);
    assert_eq!(draw(&Mask::Dilated, 2), ["#.#...", "#..#..", "##..#.", "#.#..#"]);
    assert_eq!(draw(&Mask::Window(Some(0), None), i128::from(i64::MIN)), ["######"; 4]);
    let table = Array3::from_shape_vec((1, 2, 2), vec![true, false, false, true]).expect("four");
    assert_eq!(draw(&Mask::Blocks { table, q_block: 3, kv_block: 4 }, 0), ["####..", "####..", "####..", "....##"]);
    let ids = |ids: &[u32]| Array2::from_shape_vec((1, ids.len()), ids.to_vec()).expect("a row");
    let documents = Mask::Documents { queries: ids(&[0, 0, 1, 2]), keys: ids(&[0, 0, 0, 1, 1, 3]) };
    assert_eq!(draw(&documents, 0), ["###...", "###...", "...##.", "......"]);
}
