//! On CubeCL devices attention is composed, a block of queries at a time: Burn's products and our softmax.

use burn_cubecl::CubeBackend;

use super::AttentionOps;

impl AttentionOps for CubeBackend {}
