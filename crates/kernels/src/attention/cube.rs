//! On CubeCL devices attention is composed: Burn's products and our softmax.

use burn_cubecl::CubeBackend;

use super::AttentionOps;

impl AttentionOps for CubeBackend {}
