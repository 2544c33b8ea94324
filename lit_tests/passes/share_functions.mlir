// RUN: pcp-opt %s --pcp-share-functions | filecheck %s
// RUN: pcp-opt %s --pcp-share-functions --pcp-strip-metadata | filecheck %s --check-prefix=IREE

// What computes the same is compiled once, whatever its border says. Other numbers, another
// order of operands, storage given away and private functions are not shared. What only
// calls what is compiled has that for its part, if nothing calls itself.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.subtract
// CHECK-LABEL: func.func @eval(
// CHECK-SAME: pcp.name = "y"
// CHECK-SAME: attributes {pcp.parts}
// CHECK-NEXT: %[[R:.*]] = call @main(%arg0, %arg1)
// CHECK-NEXT: return %[[R]]
// CHECK-LABEL: func.func @other_numbers(
// CHECK-NOT: call
// CHECK-LABEL: func.func @other_order(
// CHECK-NOT: call
// CHECK-LABEL: func.func @given_away(
// CHECK-NOT: call
// CHECK-LABEL: func.func private @hidden(
// CHECK-NOT: call
// CHECK-LABEL: func.func @nothing(
// CHECK-NEXT: return
// CHECK-LABEL: func.func @nothing_again(
// CHECK-NEXT: return

// CHECK-LABEL: func.func @calls(
// CHECK-NOT: pcp.parts
// CHECK-LABEL: func.func @calls_again(
// CHECK-SAME: attributes {pcp.parts}
// CHECK-NEXT: call @other_numbers(%arg1, %arg0)
// CHECK-LABEL: func.func @calls_what_calls(
// CHECK-NOT: pcp.parts

// IREE-LABEL: func.func @main(
// IREE-NOT: func.func @eval(
// IREE: func.func @other_numbers(
func.func @main(%a: tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, %b: tensor<4xf32>) -> tensor<4xf32> attributes {pcp.evaluation = @eval} {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.multiply %a, %c : tensor<4xf32>
  %1 = stablehlo.subtract %0, %b : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @eval(%x: tensor<4xf32> {pcp.name = "a", pcp.role = "param"}, %y: tensor<4xf32> {pcp.name = "y", pcp.role = "data"}) -> tensor<4xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.multiply %x, %c : tensor<4xf32>
  %1 = stablehlo.subtract %0, %y : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @other_numbers(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<3.0> : tensor<4xf32>
  %0 = stablehlo.multiply %a, %c : tensor<4xf32>
  %1 = stablehlo.subtract %0, %b : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @other_order(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.multiply %a, %c : tensor<4xf32>
  %1 = stablehlo.subtract %b, %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @given_away(%a: tensor<4xf32> {iree.abi.output = 0 : index}, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.multiply %a, %c : tensor<4xf32>
  %1 = stablehlo.subtract %0, %b : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @hidden(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.multiply %a, %c : tensor<4xf32>
  %1 = stablehlo.subtract %0, %b : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @nothing(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
func.func @nothing_again(%a: tensor<4xf32>) -> tensor<4xf32> {
  return %a : tensor<4xf32>
}
func.func @calls(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = call @other_numbers(%b, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %a : tensor<4xf32>, tensor<4xf32>
}
func.func @calls_again(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = call @other_numbers(%b, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %a : tensor<4xf32>, tensor<4xf32>
}
func.func @calls_what_calls(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0:2 = call @calls(%b, %a) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#0 : tensor<4xf32>
}
