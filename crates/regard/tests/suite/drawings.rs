//! What each kind of mask and bias means, drawn by hand: the textbook asks the same masks and biases as the kernels, and
//! could not tell.

use ndarray::{Array2, Array3, Array4, array};
use regard::{Bias, HeadPosition, Mask, alibi_slopes};

fn drawing(mask: &Mask<'_>, batch: usize, head: usize, q_offset: i64, n: usize, m: usize) -> Vec<String> {
    let place = HeadPosition { batch, head, q_offset };
    let row = |i: usize| (0..m).map(|j| if mask.visible(&place, i, j) { '#' } else { '.' }).collect();
    (0..n).map(row).collect()
}

#[test]
fn bands_follow_the_offset() {
    for (mask, offset, expected) in [
        (Mask::causal(), 0, ["#....", "##...", "###.."]),
        (Mask::causal(), 2, ["###..", "####.", "#####"]),
        (Mask::causal(), -1, [".....", "#....", "##..."]),
        (Mask::reverse(), 1, [".####", "..###", "...##"]),
        (Mask::strictly_future(), 1, ["..###", "...##", "....#"]),
        (Mask::window(Some(1), Some(0)), 0, ["#....", "##...", ".##.."]),
        (Mask::window(Some(1), Some(2)), 2, [".####", "..###", "...##"]),
        (Mask::window(Some(0), None), 1, [".####", "..###", "...##"]),
        (Mask::window(None, Some(1)), 0, ["##...", "###..", "####."]),
    ] {
        assert_eq!(drawing(&mask, 0, 0, offset, 3, 5), expected, "{mask:?}");
    }
}

#[test]
fn key_lengths_are_per_batch_entry() {
    let mask = Mask::key_lengths(vec![0, 2, 4]);
    for (batch, row) in ["....", "##..", "####"].into_iter().enumerate() {
        assert_eq!(drawing(&mask, batch, 0, 3, 2, 4), [row, row]);
    }
    assert_eq!(drawing(&Mask::first_keys(2), 1, 0, 3, 2, 4), ["##..", "##.."]);
}

#[test]
fn documents_are_per_batch_entry_or_shared() {
    let (q, k) = (array![[0u32, 1], [7, 7]], array![[0u32, 0, 1, 2], [7, 8, 7, 8]]);
    let mask = Mask::documents(q.view(), k.view());
    assert_eq!(drawing(&mask, 0, 0, 0, 2, 4), ["##..", "..#."]);
    assert_eq!(drawing(&mask, 1, 0, 0, 2, 4), ["#.#.", "#.#."]);
    // One row serves all, on either side.
    let shared: Array2<u32> = array![[0, 1]];
    let mask = Mask::documents(shared, k);
    assert_eq!(drawing(&mask, 0, 0, 0, 2, 4), ["##..", "..#."]);
    assert_eq!(drawing(&mask, 1, 0, 0, 2, 4), ["....", "...."]);
}

#[test]
fn a_dense_mask_is_indexed_by_batch_head_query_and_key() {
    let only = |shape: [usize; 4], at: [usize; 4]| {
        let mut table = Array4::from_elem(shape, false);
        table[at] = true;
        Mask::dense(table)
    };
    let mask = only([2, 3, 2, 4], [1, 2, 0, 3]);
    assert_eq!(drawing(&mask, 1, 2, 5, 2, 4), ["...#", "...."]);
    assert_eq!(drawing(&mask, 0, 2, 5, 2, 4), ["....", "...."]);
    assert_eq!(drawing(&mask, 1, 1, 5, 2, 4), ["....", "...."]);
    let mask = only([1, 3, 1, 4], [0, 1, 0, 2]);
    assert_eq!(drawing(&mask, 1, 1, 0, 2, 4), ["..#.", "..#."]);
    assert_eq!(drawing(&mask, 1, 0, 0, 2, 4), ["....", "...."]);
    let mask = only([2, 1, 2, 1], [1, 0, 1, 0]);
    assert_eq!(drawing(&mask, 1, 2, 0, 2, 4), ["....", "####"]);
}

#[test]
fn blocks_count_queries_from_zero() {
    let mut table = Array3::from_elem((2, 2, 2), false);
    table[[0, 0, 1]] = true;
    table[[1, 1, 0]] = true;
    let mask = Mask::blocks(table, 2, 3);
    assert_eq!(drawing(&mask, 0, 0, 9, 3, 5), ["...##", "...##", "....."]);
    assert_eq!(drawing(&mask, 3, 1, 9, 3, 5), [".....", ".....", "###.."]);
}

#[test]
fn masks_combine_by_and_or_and_not() {
    let (causal, first) = (Mask::causal, || Mask::first_keys(2));
    let draw = |mask: Mask<'_>| drawing(&mask, 0, 0, 0, 3, 3);
    assert_eq!(draw(causal() & first()), ["#..", "##.", "##."]);
    assert_eq!(draw(causal() | first()), ["##.", "##.", "###"]);
    assert_eq!(draw(!causal()), [".##", "..#", "..."]);
    assert_eq!(draw(!(causal() | first())), ["..#", "..#", "..."]);
    assert_eq!(draw(causal() & first() & !Mask::first_keys(1)), ["...", ".#.", ".#."]);
    assert_eq!(draw(Mask::everything() & causal()), draw(causal()));
    assert_eq!(draw(!Mask::everything()), ["...", "...", "..."]);
}

#[test]
fn a_bias_is_a_number_per_pair_or_per_distance() {
    let place = |batch, head, q_offset| HeadPosition { batch, head, q_offset };
    let dense = Array4::from_shape_fn([2, 1, 3, 4], |(b, _, i, j)| (100 * b + 10 * i + j) as f32);
    assert_eq!(Bias::Dense(dense.into()).at(&place(1, 5, 7), 2, 3), 123.0);
    let dense = Array4::from_shape_fn([1, 2, 1, 4], |(_, h, _, j)| (10 * h + j) as f64 + 1e-12);
    assert_eq!(Bias::Dense64(dense.into()).at(&place(1, 1, 7), 2, 3), 13.0 + 1e-12);
    let alibi = Bias::Alibi(vec![0.5, 2.0]);
    assert_eq!([0, 2, 5].map(|key| alibi.at(&place(0, 1, 0), 2, key)), [-4.0, 0.0, -6.0]);
    assert_eq!([0, 2, 5].map(|key| alibi.at(&place(0, 0, 3), 2, key)), [-2.5, -1.5, 0.0]);
    assert_eq!(alibi_slopes(2), [0.0625, 0.00390625]);
    // Columns: two or more before, one before, the same, one after, two or more after.
    let table = array![[1f32, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 50.0]];
    let relative = Bias::Relative(table.into());
    assert_eq!([0, 2, 3, 4, 5, 9].map(|key| relative.at(&place(0, 0, 1), 2, key)), [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]);
    assert_eq!(relative.at(&place(0, 1, 1), 2, 2), 20.0);
}
