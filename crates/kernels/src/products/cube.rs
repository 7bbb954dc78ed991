//! On CubeCL devices products are Burn's own.

use burn_cubecl::CubeBackend;

use super::ProductOps;

impl ProductOps for CubeBackend {}
