// RUN: pcp-opt %s --pcp-expand-batch-dims | filecheck %s
// RUN: pcp-opt %s --pcp-expand-batch-dims --pcp-expand-batch-dims | filecheck %s

// The scores of attention, as PyTorch writes them.
// CHECK-LABEL: func.func @scores
// CHECK-SAME: [[Q:%.*]]: tensor<8x4x16x2xf32>, [[K:%.*]]: tensor<8x4x16x2xf32>
// CHECK-NEXT: [[S:%.*]] = stablehlo.dot_general [[Q]], [[K]], batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<8x4x16x2xf32>, tensor<8x4x16x2xf32>) -> tensor<8x4x16x16xf32>
// CHECK-NEXT: return [[S]]
func.func @scores(%q: tensor<8x4x16x2xf32>, %k: tensor<8x4x16x2xf32>) -> tensor<8x4x16x16xf32> {
  %a = stablehlo.reshape %q : (tensor<8x4x16x2xf32>) -> tensor<32x16x2xf32>
  %b = stablehlo.reshape %k : (tensor<8x4x16x2xf32>) -> tensor<32x16x2xf32>
  %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<32x16x2xf32>, tensor<32x16x2xf32>) -> tensor<32x16x16xf32>
  %0 = stablehlo.reshape %c : (tensor<32x16x16xf32>) -> tensor<8x4x16x16xf32>
  return %0 : tensor<8x4x16x16xf32>
}

// One operand says what the dim was; dims of size 1 are no dims. The other operand is
// reshaped, and the result back; a precision stays.
// CHECK-LABEL: func.func @one
// CHECK-SAME: [[Q:%.*]]: tensor<8x1x4x16x2xf32>, [[K:%.*]]: tensor<2x32x5xf32>
// CHECK-DAG: [[A:%.*]] = stablehlo.reshape [[Q]] : (tensor<8x1x4x16x2xf32>) -> tensor<8x4x16x2xf32>
// CHECK-DAG: [[B:%.*]] = stablehlo.reshape [[K]] : (tensor<2x32x5xf32>) -> tensor<2x8x4x5xf32>
// CHECK: [[S:%.*]] = stablehlo.dot_general [[A]], [[B]], batching_dims = [0, 1] x [1, 2], contracting_dims = [3] x [0], precision = [HIGHEST, HIGHEST] : (tensor<8x4x16x2xf32>, tensor<2x8x4x5xf32>) -> tensor<8x4x16x5xf32>
// CHECK: stablehlo.reshape [[S]] : (tensor<8x4x16x5xf32>) -> tensor<32x16x5xf32>
func.func @one(%q: tensor<8x1x4x16x2xf32>, %k: tensor<2x32x5xf32>) -> tensor<32x16x5xf32> {
  %a = stablehlo.reshape %q : (tensor<8x1x4x16x2xf32>) -> tensor<32x16x2xf32>
  %c = stablehlo.dot_general %a, %k, batching_dims = [0] x [1], contracting_dims = [2] x [0], precision = [HIGHEST, HIGHEST] : (tensor<32x16x2xf32>, tensor<2x32x5xf32>) -> tensor<32x16x5xf32>
  return %c : tensor<32x16x5xf32>
}

// A reshape that cuts across the batching dim says nothing of it, nor does one of
// the other dims.
// CHECK-LABEL: func.func @across
// CHECK: stablehlo.dot_general {{.*}} batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x4x2xf32>, tensor<6x2x3xf32>)
func.func @across(%q: tensor<4x12xf32>, %k: tensor<6x2x3xf32>) -> tensor<6x4x3xf32> {
  %a = stablehlo.reshape %q : (tensor<4x12xf32>) -> tensor<6x4x2xf32>
  %c = stablehlo.dot_general %a, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<6x4x2xf32>, tensor<6x2x3xf32>) -> tensor<6x4x3xf32>
  return %c : tensor<6x4x3xf32>
}
