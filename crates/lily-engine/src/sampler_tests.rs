use super::*;

fn params(temperature: f32, top_k: usize, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams { temperature, top_k, top_p, min_p, seed: Some(7) }
}

/// Counts of each id over `n` draws.
fn counts(p: SamplingParams, logits: &[f32], n: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(p, logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits).unwrap() as usize] += 1;
    }
    counts
}

fn support(p: SamplingParams, logits: &[f32]) -> Vec<usize> {
    counts(p, logits, 4000).iter().enumerate().filter(|(_, c)| **c > 0).map(|(i, _)| i).collect()
}

/// Natural logarithms of probabilities, so that expected sets can be read off.
fn logs(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn greedy_ties_go_to_the_lower_id() {
    let mut s = Sampler::new(SamplingParams::GREEDY, 5);
    assert_eq!(s.sample(&[1.0, 3.0, 3.0, 2.0, 3.0]), Ok(1));
    assert_eq!(s.sample(&[-0.0, 0.0, -1.0, 0.0, -2.0]), Ok(0));
    assert_eq!(s.sample(&[f32::NEG_INFINITY, -1e30, f32::NEG_INFINITY, -2e30, -3e30]), Ok(1));
}

#[test]
fn top_k_ties_go_to_the_lower_id() {
    assert_eq!(support(params(1.0, 2, 1.0, 0.0), &[1.0, 3.0, 3.0, 3.0, 3.0]), [1, 2]);
}

#[test]
fn padding_rows_are_never_chosen() {
    let logits = [0.0, 1.0, 50.0, 60.0];
    assert_eq!(Sampler::new(SamplingParams::GREEDY, 2).sample(&logits), Ok(1));
    let mut s = Sampler::new(params(2.0, 0, 1.0, 0.0), 2);
    assert!((0..1000).all(|_| s.sample(&logits).unwrap() < 2));
    assert!(s.allows(1) && !s.allows(2));
    // NaN in a padding row is no error: the row is never looked at.
    assert_eq!(Sampler::new(SamplingParams::GREEDY, 2).sample(&[0.0, 1.0, f32::NAN, 0.0]), Ok(1));
}

#[test]
fn broken_logits_are_an_error_that_names_the_token() {
    for p in [SamplingParams::GREEDY, params(1.0, 20, 0.95, 0.0)] {
        let e = Sampler::new(p, 3).sample(&[0.0, f32::NAN, 1.0]).unwrap_err();
        assert_eq!(e.to_string(), "the model gave NaN as logit of token 1");
        let e = Sampler::new(p, 3).sample(&[0.0, 2.0, f32::INFINITY]).unwrap_err();
        assert_eq!(e.to_string(), "the model gave inf as logit of token 2");
        assert_eq!(Sampler::new(p, 2).sample(&[f32::NEG_INFINITY; 2]), Err(SamplerError::NothingAllowed));
        assert_eq!(Sampler::new(p, 2).sample(&[]), Err(SamplerError::NothingAllowed));
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37 % 101) as f32) * 0.05).collect();
    let run = |seed| {
        let mut s = Sampler::new(SamplingParams { seed, ..params(1.0, 0, 0.9, 0.0) }, 1000);
        (0..50).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(Some(42)), run(Some(42)));
    assert_ne!(run(Some(42)), run(Some(43)));
    assert_ne!(run(None), run(None));
}

#[test]
fn frequencies_follow_the_softmax() {
    let n = 40_000;
    for (temperature, expected) in [
        (1.0, [0.1, 0.2, 0.3, 0.4]),
        (0.5, [0.01, 0.04, 0.09, 0.16]),
        (2.0, [0.1f64.sqrt(), 0.2f64.sqrt(), 0.3f64.sqrt(), 0.4f64.sqrt()]),
    ] {
        let total: f64 = expected.iter().sum();
        let seen = counts(params(temperature, 0, 1.0, 0.0), &logs(&[0.1, 0.2, 0.3, 0.4]), n);
        for (count, e) in seen.iter().zip(expected) {
            let (p, q) = (*count as f64 / n as f64, e / total);
            // Four standard deviations of a binomial.
            assert!((p - q).abs() < 4.0 * (q * (1.0 - q) / n as f64).sqrt(), "{temperature}: {p} for {q}");
        }
    }
}

#[test]
fn b129_aprender_2376_each_filter_cuts_where_it_says() {
    let l = logs(&[0.05, 0.4, 0.15, 0.1, 0.3]);
    assert_eq!(support(params(1.0, 0, 1.0, 0.0), &l), [0, 1, 2, 3, 4]);
    assert_eq!(support(params(1.0, 3, 1.0, 0.0), &l), [1, 2, 4]);
    assert_eq!(support(params(1.0, 1, 1.0, 0.0), &l), [1]);
    // 0.4 + 0.3 < 0.71 ≤ 0.4 + 0.3 + 0.15: the token that crosses stays.
    assert_eq!(support(params(1.0, 0, 0.71, 0.0), &l), [1, 2, 4]);
    assert_eq!(support(params(1.0, 0, 0.69, 0.0), &l), [1, 4]);
    assert_eq!(support(params(1.0, 0, 1e-6, 0.0), &l), [1]);
    // A quarter of 0.4 is 0.1, just below; 0.3 of it is 0.12.
    assert_eq!(support(params(1.0, 0, 1.0, 0.24), &l), [1, 2, 3, 4]);
    assert_eq!(support(params(1.0, 0, 1.0, 0.3), &l), [1, 2, 4]);
    assert_eq!(support(params(1.0, 0, 1.0, 1.0), &l), [1]);
}

#[test]
fn filters_apply_in_order() {
    let l = logs(&[0.05, 0.4, 0.15, 0.1, 0.3]);
    // After top_k 2 the probabilities are 4/7 and 3/7, so that top_p 0.55 keeps one; of all five it would keep two.
    assert_eq!(support(params(1.0, 2, 0.55, 0.0), &l), [1]);
    assert_eq!(support(params(1.0, 0, 0.55, 0.0), &l), [1, 4]);
    // Temperature comes first: at 0.5 the squares 0.16, 0.09, … of 0.285 put 0.56 on the best alone.
    assert_eq!(support(params(0.5, 0, 0.55, 0.0), &l), [1]);
}

#[test]
fn sizes_at_and_beyond_the_vocabulary_do_not_matter() {
    let l = logs(&[0.25, 0.5, 0.25]);
    for k in [0, 3, 4, 1 << 31, usize::MAX] {
        assert_eq!(counts(params(1.0, k, 1.0, 0.0), &l, 200).iter().filter(|c| **c > 0).count(), 3, "{k}");
    }
}

#[test]
fn tiny_temperatures_are_greedy_and_do_not_overflow() {
    assert_eq!(support(params(1e-30, 0, 1.0, 0.0), &[-3e38, 3e38, 2.9e38]), [1]);
    assert_eq!(support(params(f32::MIN_POSITIVE, 5, 0.9, 0.1), &[1.0, 5.0, 4.999]), [1]);
}

#[test]
fn a_nucleus_wider_than_one_round_of_selection_is_whole() {
    // 10,000 equal tokens: top_p 0.5 keeps the 5,000 lowest ids (or one more, by rounding of the sum).
    let mut kept: Vec<(u32, f64)> = (0..10_000).map(|id| (id, 0.3)).collect();
    keep_nucleus(&mut kept, 0.5);
    assert!((5000..=5001).contains(&kept.len()), "{}", kept.len());
    assert!(kept.iter().enumerate().all(|(i, (id, _))| i as u32 == *id));
}

#[test]
fn partial_selection_equals_a_full_sort() {
    let mut rng = Pcg64::seed_from_u64(3);
    for (n, levels) in [(5000, 40), (5000, 1_000_000), (300, 7), (20, 3)] {
        let logits: Vec<f32> = (0..n).map(|_| (rng.next_u64() % levels) as f32 - 10.0).collect();
        let mut all: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
        all.sort_by(likelier);
        for k in [1, 2, 20, 63, 64, 65, 255, 256, 257, 2000, n] {
            let k = k.min(n);
            let mut got = likeliest(&logits, k);
            got.sort_by(likelier);
            assert_eq!(got, all[..k], "n {n}, levels {levels}, k {k}");
        }
    }
}

#[test]
fn the_largest_logits_lead_to_the_same_tokens_as_the_whole_row() {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 20) as f32 / 400.0 // coarse, so that there are ties
    };
    for p in [params(1.0, 20, 0.95, 0.0), params(0.7, 5, 1.0, 0.05), params(1.5, 64, 0.9, 0.0), SamplingParams::GREEDY]
    {
        let (mut whole, mut top) = (Sampler::new(p, 300), Sampler::new(p, 300));
        for _ in 0..200 {
            let logits: Vec<f32> = (0..310).map(|_| next()).collect();
            let mut order: Vec<(u32, f32)> = (0..300).map(|i| (i, logits[i as usize])).collect();
            order.sort_by(likelier);
            order.truncate(64);
            assert_eq!(top.sample_top(&order), whole.sample(&logits));
        }
    }
    let mut s = Sampler::new(params(1.0, 2, 1.0, 0.0), 3);
    assert!(matches!(s.sample_top(&[(4, f32::NAN), (1, 0.0)]), Err(SamplerError::NotFinite { id: 4, .. })));
    assert_eq!(s.sample_top(&[]), Err(SamplerError::NothingAllowed));
}

#[test]
fn b126_mtplx_120_penalties_change_the_choice_and_zero_does_not() {
    let logits: Vec<f32> = (0..300).map(|i| (i * 7 % 300) as f32 / 100.0).collect();
    for p in [SamplingParams::GREEDY, params(0.8, 20, 0.95, 0.0), params(1.0, 0, 1.0, 0.0)] {
        let tokens = |adjust: Adjust| {
            let mut s = Sampler::new(p, 300).adjusted(adjust, &[1, 2]);
            let candidates = s.candidates();
            let mut choose = || {
                let token = s.sample(&logits).unwrap();
                s.generated(token);
                token
            };
            ((0..40).map(|_| choose()).collect::<Vec<_>>(), candidates)
        };
        let plain = {
            let mut s = Sampler::new(p, 300);
            let candidates = s.candidates();
            ((0..40).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>(), candidates)
        };
        assert_eq!(tokens(Adjust::default()), plain);
        // Whatever is chosen is pushed below all others: no token comes twice, and a device may not choose.
        let (once, candidates) = tokens(Adjust { presence_penalty: 200.0, ..Adjust::default() });
        let different: std::collections::BTreeSet<_> = once.iter().collect();
        assert_eq!((different.len(), candidates), (40, None));
        let (biased, _) = tokens(Adjust { logit_bias: vec![(5, 100.0)], ..Adjust::default() });
        assert_eq!(biased, [5; 40]);
    }
}
