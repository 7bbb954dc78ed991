//! On CubeCL devices attention is composed, a block of queries at a time: products of two matrices and our softmax.

use burn_cubecl::CubeBackend;

use super::AttentionOps;

impl AttentionOps for CubeBackend {}
