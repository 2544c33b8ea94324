// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// A reversal of every second element is every second element of a reversal.
// CHECK-LABEL: func.func @strided
func.func @strided(%x: tensor<9xf32>) -> tensor<4xf32> {
  // CHECK: %[[R:.*]] = stablehlo.reverse %arg0, dims = [0] : tensor<9xf32>
  // CHECK: stablehlo.slice %[[R]] [1:8:2]
  %s = stablehlo.slice %x [1:9:2] : (tensor<9xf32>) -> tensor<4xf32>
  %r = stablehlo.reverse %s, dims = [0] : tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @contiguous
func.func @contiguous(%x: tensor<9xf32>) -> tensor<4xf32> {
  // CHECK: stablehlo.slice %arg0 [1:5]
  // CHECK: stablehlo.reverse
  %s = stablehlo.slice %x [1:5] : (tensor<9xf32>) -> tensor<4xf32>
  %r = stablehlo.reverse %s, dims = [0] : tensor<4xf32>
  return %r : tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @unsigned
func.func @unsigned(%x: tensor<5xui8>) -> tensor<5xui8> {
  // CHECK: %[[S:.*]] = stablehlo.bitcast_convert %arg0 {{.*}} -> tensor<5xi8>
  // CHECK: %[[R:.*]] = stablehlo.reverse %[[S]], dims = [0] : tensor<5xi8>
  // CHECK: stablehlo.bitcast_convert %[[R]] {{.*}} -> tensor<5xui8>
  %r = stablehlo.reverse %x, dims = [0] : tensor<5xui8>
  return %r : tensor<5xui8>
}

// -----

// The highest bit is flipped in front of a maximum, and behind it.
// CHECK-LABEL: func.func @maximum
func.func @maximum(%x: tensor<5xui8>) -> tensor<4xui8> {
  // CHECK: stablehlo.constant dense<-128> : tensor<5xi8>
  // CHECK: stablehlo.xor
  // CHECK: "stablehlo.reduce_window"
  // CHECK: stablehlo.maximum {{.*}} : tensor<i8>
  // CHECK: stablehlo.xor
  // CHECK: stablehlo.bitcast_convert {{.*}} -> tensor<4xui8>
  %zero = stablehlo.constant dense<0> : tensor<ui8>
  %r = "stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2>}> ({
  ^bb0(%a: tensor<ui8>, %b: tensor<ui8>):
    %m = stablehlo.maximum %a, %b : tensor<ui8>
    stablehlo.return %m : tensor<ui8>
  }) : (tensor<5xui8>, tensor<ui8>) -> tensor<4xui8>
  return %r : tensor<4xui8>
}
