fn mean(x: &[f32]) -> f32 {
    x.iter().sum::<f32>() / x.len() as f32
}

fn deviation(x: &[f32]) -> f32 {
    let centre = mean(x);
    (x.iter().map(|y| (y - centre) * (y - centre)).sum::<f32>() / (x.len() - 1) as f32).sqrt()
}

fn median(x: &[f32]) -> f32 {
    let mut x = x.to_vec();
    x.sort_by(f32::total_cmp);
    let middle = x.len() / 2;
    if x.len() % 2 == 1 { x[middle] } else { (x[middle - 1] + x[middle]) / 2.0 }
}

fn weights(q: &[f32], k: &[f32], scale: f32, m: usize, d: usize) -> Vec<f32> {
    let scores: Vec<f32> = (0..m).map(|j| (0..d).map(|c| q[c] * k[j * d + c]).sum::<f32>() * scale).collect();
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f32 = e.iter().sum();
    e.iter().map(|x| x / total).collect()
}

pub fn saturation(q: &[f32], k: &[f32], scale: f32, [t, n, m, d]: [usize; 4]) -> Vec<f32> {
    let mut measures = [vec![], vec![], vec![]];
    for draw in 0..t {
        for i in 0..n {
            let w = weights(&q[(draw * n + i) * d..], &k[draw * m * d..(draw + 1) * m * d], scale, m, d);
            measures[0].push(-w.iter().map(|x| if *x > 0.0 { x * x.ln() } else { 0.0 }).sum::<f32>());
            measures[1].push(w.iter().copied().fold(0.0, f32::max));
            measures[2].push(1.0 - w.iter().map(|x| x * x).sum::<f32>());
        }
    }
    let mut table = vec![];
    for measure in &measures {
        let means: Vec<f32> = measure.chunks(n).map(mean).collect();
        let error = deviation(&means) / (t as f32).sqrt();
        table.extend([mean(&means), error, median(measure)]);
    }
    table
}
