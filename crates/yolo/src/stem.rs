//! The first convolution of weights for single images, or for another stack, spread over a stack of frames.

use crate::data::Stack;
use crate::model::names::NamedTensors;

/// Its name.
const FIRST: &str = "model.0.conv.weight";

/// Makes of weights for `own`, an image or frames, those for a stack: each frame gets the same part of the sum over colours or frames, so that a picture in which
/// nothing moves is seen as before; a background's difference is at first not seen at all.
pub(crate) fn spread(tensors: &mut NamedTensors, own: &Stack, stack: &Stack) {
    let Some((shape, values)) = tensors.get_mut(FIRST) else { return };
    let &mut [_, from, height, width] = &mut shape[..] else { return };
    let area = height * width;
    let first = usize::from(own.background > 0);
    let mut spread = Vec::with_capacity(values.len() / from.max(1) * stack.channels());
    for filter in values.chunks_exact((from * area).max(1)) {
        let each: Vec<f32> = (0..area).map(|k| (first..from).map(|c| filter[c * area + k]).sum::<f32>() / stack.frames as f32).collect();
        if stack.background > 0 {
            spread.resize(spread.len() + area, 0.0);
        }
        (0..stack.frames).for_each(|_| spread.extend_from_slice(&each));
    }
    shape[1] = stack.channels();
    *values = spread;
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;
    use crate::model::YoloConfig;
    use crate::model::names::{load_tensors, to_host, to_tensors};

    #[test]
    fn a_still_picture_is_seen_as_before() {
        let device = Device::flex();
        let colour = YoloConfig::new(2).init(3, &device);
        let picture: Vec<f32> = (0..64 * 64).map(|i| (i * 37 % 255) as f32 / 255.0).collect();
        let see = |model: &crate::model::Yolo, planes: Vec<f32>| {
            let channels = planes.len() / picture.len();
            let images = Tensor::<4>::from_data(TensorData::new(planes, [1, channels, 64, 64]), &device);
            to_host(model.forward(images).into_iter().next().unwrap())
        };
        let expected = see(&colour, picture.repeat(3));
        for stack in [Stack { frames: 3, ..Stack::default() }, Stack { frames: 2, stride: 1, background: 5 }] {
            let mut tensors = to_tensors(&colour, 0).unwrap();
            let colours = tensors[FIRST].1.clone();
            spread(&mut tensors, &Stack::default(), &stack);
            // Tap by tap the frames' weights add up to the colours'.
            for (own, colours) in tensors[FIRST].1.chunks(9 * stack.channels()).zip(colours.chunks(27)) {
                let sum = |filter: &[f32], k: usize| filter.iter().skip(k).step_by(9).sum::<f32>();
                assert!((0..9).all(|k| (sum(own, k) - sum(colours, k)).abs() < 1e-6), "{stack:?}");
            }
            let model = YoloConfig { channels: stack.channels(), ..YoloConfig::new(2) }.init(9, &device);
            let (model, report) = load_tensors(model, &tensors).unwrap();
            assert_eq!(report.transferred, report.total);
            let background = if stack.background > 0 { vec![0.5; picture.len()] } else { Vec::new() };
            let seen = see(&model, [background, picture.repeat(stack.frames)].concat());
            assert!(seen.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{stack:?}");
            // On to five frames: what weighed a difference weighs none of them.
            let mut tensors = to_tensors(&model, 0).unwrap();
            if stack.background > 0 {
                tensors.get_mut(FIRST).unwrap().1.chunks_mut(9 * stack.channels()).for_each(|filter| filter[..9].fill(7.0));
            }
            spread(&mut tensors, &stack, &Stack { frames: 5, ..Stack::default() });
            for (own, colours) in tensors[FIRST].1.chunks(45).zip(colours.chunks(27)) {
                let sum = |filter: &[f32], k: usize| filter.iter().skip(k).step_by(9).sum::<f32>();
                assert!((0..9).all(|k| (sum(own, k) - sum(colours, k)).abs() < 1e-5), "{stack:?}");
            }
        }
    }
}
