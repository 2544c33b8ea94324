// RUN: pcp-opt --pcp-vjp=func=main %s | filecheck %s
// RUN: pcp-opt --pcp-jvp=func=main %s | filecheck %s --check-prefix=JVP
// RUN: pcp-opt --pcp-vjp=func=counted %s | filecheck %s --check-prefix=COUNT
// RUN: pcp-opt --pcp-jvp=func=counted %s | filecheck %s --check-prefix=COUNT

// The rule's factor of three is there in both modes, the call is not.
// CHECK-LABEL: func.func @main_vjp
// CHECK-NOT: call @square
// CHECK: dense<3.0
// CHECK: return
// CHECK-LABEL: func.func private @square(
// JVP-LABEL: func.func @main_jvp
// JVP-NOT: call @square
// JVP: dense<3.0
// JVP: return
// JVP-LABEL: func.func private @square(
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = func.call @square(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.multiply %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @square_jvp(%x: tensor<4xf32>, %t: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>) {
  %y = stablehlo.multiply %x, %x : tensor<4xf32>
  %three = stablehlo.constant dense<3.0> : tensor<4xf32>
  %a = stablehlo.multiply %three, %x : tensor<4xf32>
  %b = stablehlo.multiply %a, %t : tensor<4xf32>
  return %y, %b : tensor<4xf32>, tensor<4xf32>
}
"pcp.custom_jvp"() {primal = @square, jvp = @square_jvp} : () -> ()

// A declaration may do more than return: it is called once, by its rule.
// COUNT-LABEL: func.func @counted_{{vjp|jvp}}
// COUNT: call @count(
// COUNT-NOT: call @count(
// COUNT: return
func.func @counted(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = func.call @count(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @count(%x: tensor<4xf32>) -> tensor<4xf32>
func.func private @count_jvp(%x: tensor<4xf32>, %t: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>) {
  %y = func.call @count(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y, %t : tensor<4xf32>, tensor<4xf32>
}
"pcp.custom_jvp"() {primal = @count, jvp = @count_jvp} : () -> ()
