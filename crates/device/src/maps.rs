//! The run's own linear maps, some rows through each, with the matrix stored as the run stores it: words of bf16s and of int8s are read where they lie,
//! NF4 and the blocks of a GGUF are made dense before each product of more than four, and each of these ways has kernels of its own. So has a low-rank branch.

use crate::made::{numbers, pattern, tensor};
use bellows_kernels::cube::{Class, Pass};
use bellows_kernels::{Blocks, Coding, LowRank, Map, Precision, Weight, enter, lead, linear, linear_data_grad, maps};
use bellows_weights::BlockType;
use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Rows that are computed at least: a block of the tallest.
pub(crate) const SOME: usize = 64;

/// How the matrix of a frozen map is stored, where that is not in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// In f16.
    F16,
    /// In bf16.
    Bf16,
    /// In bf16s two to a word, for devices that have no such type.
    Words,
    /// In whole numbers of 8 bits, with a scale a row.
    Int8,
    /// In 4 bits a value.
    Nf4,
    /// In the blocks of a GGUF, by ggml's number of their type; f32 where rows are no whole blocks.
    File(u32),
}

impl Storage {
    /// The type that a device must have for it.
    pub(crate) fn needs(self) -> Option<DType> {
        match self {
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            Self::Words | Self::Int8 | Self::Nf4 | Self::File(_) => None,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Words => "words of bf16",
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
            Self::File(id) => BlockType::from_id(*id).map_or("unknown blocks", BlockType::name),
        })
    }
}

/// Values in blocks of a GGUF. Of many rows the first are repeated: some types take long to search their scales.
fn blocks(id: u32, values: &[f32], [rows, columns]: [usize; 2], device: &Device) -> Option<Blocks> {
    const SEARCHED: usize = 61;
    let kind = BlockType::from_id(id)?;
    let coding = Coding::of_ggml(id, kind.decoder())?;
    let searched = kind.quantize(&values[..rows.min(SEARCHED) * columns]).ok()?.bytes;
    let size = kind.bytes_of(&[rows, columns])?;
    let bytes = searched.into_iter().cycle().take(size).collect();
    Some(Blocks::of_file(bytes, coding, [rows, columns], device))
}

/// A linear map of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinearMap {
    /// Outputs and inputs.
    pub sizes: [usize; 2],
    /// How its frozen matrix is stored; `None`: in f32.
    pub storage: Option<Storage>,
    /// The rank of the branch in its sums; 0 if there is none, or one that is products of its own.
    pub rank: usize,
    /// Rows of a batch ([`in_batch`](Self::in_batch)).
    pub rows: usize,
}

impl LinearMap {
    /// The same in batches of up to so many rows; or of the fewest whole blocks of rows of which both passes take the blocks of those, so that what is remembered
    /// of one batch holds for others.
    #[must_use]
    pub fn in_batch(self, rows: usize) -> Self {
        let classes = |blocks: usize| [Pass::Forward, Pass::Input].map(|pass| self.class(pass, blocks * SOME));
        let most = rows.div_ceil(SOME).max(1);
        let asked = classes(most);
        Self { rows: SOME * (1..most).find(|&fewer| classes(fewer) == asked).unwrap_or(most), ..self }
    }

    /// The class of the blocks in which a pass of so many rows is computed.
    pub(crate) fn class(&self, pass: Pass, rows: usize) -> Class {
        let [out, input] = self.sizes;
        Class::of(rows, if pass == Pass::Forward { out } else { input }, 1)
    }

    /// Made-up values of a matrix of the map.
    fn values(shape: [usize; 2]) -> Vec<f32> {
        // Numbers that 16 bits hold: how a driver rounds to them is not what is asked here.
        pattern(81, shape[0] * shape[1]).into_iter().map(|v| (v * 128.0).round() / 128.0).collect()
    }

    fn weight(&self, device: &Device) -> Weight {
        let (shape, values) = (self.sizes, Self::values(self.sizes));
        if let Some(Storage::File(id)) = self.storage
            && let Some(blocks) = blocks(id, &values, shape, device)
        {
            return Weight::Blocks(blocks);
        }
        match self.storage {
            Some(Storage::Words) => Weight::Blocks(Blocks::bf16(&values, shape, device)),
            Some(Storage::Int8) => Weight::Blocks(Blocks::int8(&values, shape, device)),
            Some(Storage::Nf4) => Weight::Blocks(Blocks::nf4(&values, shape, device)),
            storage @ (None | Some(Storage::F16 | Storage::Bf16 | Storage::File(_))) => {
                let dense = Tensor::<2>::from_data(TensorData::new(values, shape), device);
                Weight::Dense(dense.cast(storage.and_then(Storage::needs).unwrap_or(DType::F32)))
            }
        }
    }

    /// A and B of the branch, so small that its terms hide none of the map's.
    fn branch(&self, device: &Device) -> LowRank {
        let ([out, input], rank) = (self.sizes, self.rank);
        let factor = |stream, shape: [usize; 2]| {
            let values: Vec<f32> = pattern(stream, shape[0] * shape[1]).into_iter().map(|v| 0.2 * v).collect();
            Tensor::<2>::from_data(TensorData::new(values, shape), device)
        };
        LowRank { a: factor(83, [rank, input]), b: factor(84, [out, rank]), scaling: 2.0 }
    }

    /// A pass of so many rows as training has it: the result, or the gradients of the input, of A and of B.
    pub(crate) fn run(&self, pass: Pass, rows: usize, device: &Device, precision: Precision) -> Vec<Vec<f32>> {
        let [out, input] = self.sizes;
        let x = |device: &Device| tensor::<2>(80, [rows, input], device);
        let slopes = |device: &Device| tensor::<2>(82, [rows, out], device);
        match pass {
            Pass::Forward if self.rank == 0 => vec![numbers(linear(x(device), self.weight(device), None, precision))],
            Pass::Forward => {
                let map = Map { weight: self.weight(device), bias: None, branch: Some(self.branch(device)) };
                let [y] = maps(x(device), [map], None, false, precision);
                vec![numbers(y)]
            }
            _ if self.rank == 0 => vec![numbers(linear_data_grad(slopes(device), self.weight(device), precision))],
            _ => {
                let graph = &device.clone().autodiff();
                let LowRank { a, b, scaling } = self.branch(graph);
                let leaves = [x(graph), a, b].map(|leaf| leaf.require_grad());
                let [x, a, b] = leaves.clone();
                let map = Map { weight: self.weight(graph), bias: None, branch: Some(LowRank { a, b, scaling }) };
                let [y] = maps(enter(x), [map], None, false, precision);
                let gradients = lead(y, slopes(graph)).backward();
                leaves.iter().map(|leaf| leaf.grad(&gradients).map(numbers).unwrap_or_default()).collect()
            }
        }
    }
}

impl fmt::Display for LinearMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [out, input] = self.sizes;
        write!(f, "{input}>{out}")?;
        self.storage.map_or(Ok(()), |storage| write!(f, " in {storage}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(storage: Option<Storage>, rank: usize) -> LinearMap {
        LinearMap { sizes: [33, 70], storage, rank, rows: SOME }
    }

    fn run(map: LinearMap, pass: Pass) -> Vec<Vec<f32>> {
        map.run(pass, SOME, &Device::flex(), Precision::F32)
    }

    /// The largest difference of the first lists.
    fn apart(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
        a[0].iter().zip(&b[0]).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()))
    }

    /// 16 bits hold the matrix, 8 and 4 do not: a check of those is of other numbers.
    #[test]
    fn a_matrix_is_stored_as_it_is_said() {
        for (pass, rank) in [Pass::Forward, Pass::Input].into_iter().flat_map(|pass| [(pass, 0), (pass, 4)]) {
            let dense = run(map(None, rank), pass);
            let error = |storage| apart(&run(map(Some(storage), rank), pass), &dense);
            for exact in [Storage::F16, Storage::Bf16, Storage::Words] {
                assert!(error(exact) < 1e-5, "{exact}");
            }
            let [int8, nf4] = [Storage::Int8, Storage::Nf4].map(error);
            assert!(int8 > 1e-3 && int8 < nf4 && nf4 < 5.0, "{int8} {nf4}");
            assert_eq!(error(Storage::File(12)), 0.0, "70 columns are no whole blocks of Q4_K");
            let wide = |storage| run(LinearMap { sizes: [33, 256], storage, ..map(None, rank) }, pass);
            let [q8_0, q4_k] = [8, 12].map(|id| apart(&wide(Some(Storage::File(id))), &wide(None)));
            assert!(q8_0 > 1e-3 && q8_0 < q4_k && q4_k < 5.0, "{q8_0} {q4_k}");
        }
    }

    /// With a branch beside it there are more terms, and gradients of A and B.
    #[test]
    fn a_branch_is_in_both_passes() {
        for pass in [Pass::Forward, Pass::Input] {
            let [plain, beside] = [0, 4].map(|rank| run(map(None, rank), pass));
            let most = plain[0].iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let branch = apart(&plain, &beside);
            assert!(branch > 0.05 * most && branch < 2.0 * most, "{branch} beside {most}");
            let lengths: Vec<usize> = beside.iter().map(Vec::len).collect();
            assert_eq!(lengths, if pass == Pass::Forward { vec![SOME * 33] } else { vec![SOME * 70, 4 * 70, 33 * 4] });
            assert!(beside.iter().all(|list| list.iter().any(|v| v.abs() > 0.1)));
        }
    }

    /// Maps of the 0.5B model: 4 blocks of rows are the first with 144 blocks of 64 x 128 for 4,864 columns, 21 for 896 and 144 for 128.
    #[test]
    fn a_batch_has_the_fewest_rows_with_its_blocks() {
        let rows = |sizes, rows| LinearMap { sizes, ..map(None, 16) }.in_batch(rows).rows;
        assert_eq!([0, 64, 200, 256, 1344, 1 << 20].map(|most| rows([4864, 896], most)), [64, 64, 256, 256, 1344, 1344]);
        assert_eq!([256, 1344].map(|most| rows([896, 4864], most)), [256, 1344]);
        assert_eq!([2048, 9216].map(|most| rows([128, 896], most)), [1344, 9216]);
    }
}
