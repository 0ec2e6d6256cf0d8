//! Delta by a separate pass, for scales at which `d_out . out` is too inaccurate.

use super::differentiate::{Given, gradient_factors};
use super::kernels::{RecomputeWeights, ScoreGradients, score_gradients};
use crate::mainloop::dropout::DropoutFactors;
use crate::mainloop::operand::Operand;
use crate::mainloop::scores::{Stage, pack_factor, tile_keys, tile_queries};
use crate::mainloop::tiles::factor_depth;
use crate::mainloop::tiling::{KV_TILE, MAX_PANEL, Need, QueryTile, by_width, lanes};
use crate::mainloop::{KvTile, Visitor, mainloop};
use regard_simd::strided::Rows;
use regard_simd::{Driver, Real, Simd, Storage};

/// `delta = sum(p * d_p)` of every row of a query tile, by a pass of its own.
///
/// `d_out . out` is the same number, but its rounding is not that of `d_p`. In a row that is nearly certain of one key, `d_p - delta` is
/// what is left when both are nearly equal, and the scale multiplies it: with this sum, what `d_p` is off by cancels.
pub(super) struct TileDeltas<'u, 'c, 'x, E: Storage> {
    pub(super) given: &'u Given<'c, 'x, E>,
    pub(super) tile: QueryTile,
}

impl<E: Storage> Driver<E::Real> for TileDeltas<'_, '_, '_, E> {
    type Output = Vec<E::Real>;

    fn run<S: Simd<T = E::Real>>(self, simd: S) -> Self::Output {
        let Self { given, tile } = self;
        let (plan, scorer, lanes) = (given.plan, given.scorer(tile), lanes::<S>(tile.rows()));
        let v = Rows::new(&tile_keys(plan, &given.inputs.v, &tile));
        let mut d_out = vec![E::Real::ZERO; lanes * plan.dims.value_dim.max(factor_depth::<S>(plan.dims.value_dim))];
        pack_factor(simd, &tile, &tile_queries(plan, &given.d_out, &tile), &mut d_out);
        let states = (0..lanes).map(|r| if r < tile.rows() { given.row_state(tile.place(plan, r)) } else { [E::Real::ZERO; 2] });
        let (row_max, inv_row_sum) = states.map(|[max, inverse]| (max, inverse)).unzip();
        let panel = vec![E::Real::ZERO; KV_TILE * 2 * S::LANES];
        let mut copy = vec![E::Real::ZERO; Operand::copy_len(v)];
        let values = Operand::new(v, plan.part.key, &mut copy);
        let mut visitor = SumDeltas {
            values,
            d_out,
            row_max,
            inv_row_sum,
            factors: panel.clone(),
            p: panel.clone(),
            products: panel.clone(),
            ds: panel,
            sums: vec![0.0; lanes],
        };
        mainloop(simd, &scorer, scorer.key_range(scorer.all_keys()), usize::MAX, &mut visitor);
        visitor.sums[..tile.rows()].iter().map(|&sum| E::Real::from_f64(sum)).collect()
    }
}

struct SumDeltas<'w, E: Storage> {
    values: Operand<'w, E>,
    d_out: Vec<E::Real>,
    row_max: Vec<E::Real>,
    inv_row_sum: Vec<E::Real>,
    factors: Vec<E::Real>,
    p: Vec<E::Real>,
    products: Vec<E::Real>,
    ds: Vec<E::Real>,
    sums: Vec<f64>,
}

impl<S: Simd, E: Storage<Real = S::T>> Visitor<S, E> for SumDeltas<'_, E> {
    fn stage(&self) -> Stage {
        Stage::Masked
    }

    fn begin(&mut self, _: S, tile: &mut KvTile<'_, '_, E>, _: &[Need]) {
        self.values.begin(tile.keys.clone(), None);
    }

    fn panel(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        let (plan, panel) = (tile.scorer.plan, need.panel);
        let Self { values, d_out, row_max, inv_row_sum, factors, p, products, ds, sums } = self;
        let (row_max, inv_row_sum) = (&row_max[panel.lanes()], &inv_row_sum[panel.lanes()]);
        let factors = plan.dropout().map(|dropout| {
            let factors = &mut factors[..scores.len()];
            simd.call(DropoutFactors { dropout, tile: tile.scorer.tile, need, factors });
            &*factors
        });
        // A weight of zero may be that of a visible value that is not finite.
        let visible = (!values.is_finite(simd)).then(|| tile.scorer.visible(simd, need, scores));
        let (v, d_out) = gradient_factors(simd, values, &need.keys, d_out, &panel);
        let (ld, delta, visible) = (panel.width, &[S::T::ZERO; MAX_PANEL][..], visible.as_ref().map(|v| &v[..]));
        by_width!(S, panel.width, NR => {
            simd.call(RecomputeWeights::<_, NR> { scores, factors, row_max, inv_row_sum, ld, p });
            score_gradients(simd, ScoreGradients::<_, NR, false> { v, d_out, p: scores, factors, delta, visible, ld, products, ds });
        });
        for line in ds.chunks_exact(ld).take(need.keys.len()) {
            sums[panel.lanes()].iter_mut().zip(line).for_each(|(sum, x)| *sum += x.to_f64());
        }
    }
}
