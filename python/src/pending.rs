#![allow(missing_docs)]
use ndarray::*;
use regard::*;
pub(crate) struct HeatMap<R> {
    pub mean: Array4<R>,
    pub max: Array4<R>,
}
pub(crate) struct HeadSimilarity {
    pub centred_cosine: Array3<f64>,
    pub jensen_shannon: Array3<f64>,
}
pub(crate) trait Pending {
    fn weights<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>) -> Result<Array4<E::Real>>;
    fn scores<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>, s: Stage) -> Result<Array4<E::Real>>;
    fn heat_map<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>, rows: usize, cols: usize) -> Result<HeatMap<E::Real>> {
        let _ = (q, k, rows, cols);
        unimplemented!()
    }
    fn column_sums<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>) -> Result<Array3<E::Real>> {
        let _ = (q, k);
        unimplemented!()
    }
    fn head_similarity<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>) -> Result<HeadSimilarity> {
        let _ = (q, k);
        unimplemented!()
    }
}
impl Pending for Attention<'_> {
    fn weights<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>) -> Result<Array4<E::Real>> {
        let r = reference::attention(self, q, k.view(), k.view())?;
        Ok(r.weights.mapv(E::Real::from_f64))
    }
    fn scores<E: Element>(&self, q: ArrayView4<E>, k: ArrayView4<E>, s: Stage) -> Result<Array4<E::Real>> {
        let r = reference::attention(self, q, k.view(), k.view())?;
        Ok(match s {
            Stage::Raw => r.raw,
            Stage::Softcap => r.capped,
            Stage::Bias => r.scores,
        }
        .mapv(E::Real::from_f64))
    }
}
